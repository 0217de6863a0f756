/* Parser of configuration files: a small subset of YAML, two levels of plain mappings with scalar values. Other
 * features of YAML (anchors, aliases, tags, sequences, several documents) are refused with their line: in a
 * configuration they are usually mistakes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "common/base/mem.h"
#include "common/base/text.h"
#include "common/config/config_keys.h"

struct yaml_reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; valid while have_event */
    bool have_event;
    const char *where, *text;
    size_t size;
    struct err *err;
};

/* Advance to the next event. INVALID when the text is not YAML; err has line and reason. */
static enum status next(struct yaml_reader *y)
{
    if (y->have_event) yaml_event_delete(&y->event);
    y->have_event = false;
    if (!yaml_parser_parse(&y->parser, &y->event)) {
        const yaml_parser_t *p = &y->parser;
        size_t line = p->problem_mark.line ? p->problem_mark.line : p->context_mark.line, at = p->problem_mark.index;
        if (at < y->size && y->text[at] == '\t')
            return err_set(y->err, STATUS_INVALID, "%s:%zu: YAML does not allow tabs as indentation: use spaces",
                           y->where, line + 1);
        return err_set(y->err, STATUS_INVALID, "%s:%zu: not valid YAML: %s%s%s", y->where, line + 1,
                       p->context ? p->context : "", p->context ? ": " : "",
                       p->problem ? p->problem : "unreadable text");
    }
    y->have_event = true;
    return STATUS_OK;
}

static size_t line_of(const struct yaml_reader *y)
{
    return y->event.start_mark.line + 1;
}

/* Checks that the event is a plain or quoted scalar without anchor or tag. `what` names it in the error. */
static enum status expect_scalar(struct yaml_reader *y, const char *what)
{
    const yaml_event_t *e = &y->event;
    const char *found = NULL;
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        if (e->data.scalar.anchor)
            found = "an anchor (&)";
        else if (e->data.scalar.tag)
            found = "a tag (!)";
        else if (e->data.scalar.length != strlen((const char *)e->data.scalar.value))
            found = "a NUL character";
        break;
    case YAML_ALIAS_EVENT: found = "an alias (*)"; break;
    case YAML_SEQUENCE_START_EVENT: found = "a list"; break;
    case YAML_MAPPING_START_EVENT: found = "a mapping"; break;
    default: found = "nothing"; break;
    }
    if (!found) return STATUS_OK;
    return err_set(y->err, STATUS_INVALID, "%s:%zu: %s must be a simple value, not %s", y->where, line_of(y), what,
                   found);
}

static enum status expect_mapping(struct yaml_reader *y, const char *what)
{
    const yaml_event_t *e = &y->event;
    if (e->type == YAML_MAPPING_START_EVENT && !e->data.mapping_start.anchor && !e->data.mapping_start.tag)
        return STATUS_OK;
    return err_set(y->err, STATUS_INVALID, "%s:%zu: %s must be a mapping of keys to values, without anchors or tags",
                   y->where, line_of(y), what);
}

static bool is_plain(const yaml_event_t *e)
{
    return e->type == YAML_SCALAR_EVENT && e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !e->data.scalar.anchor &&
           !e->data.scalar.tag;
}

/* True for YAML's null values in words. */
static bool is_null_word(const yaml_event_t *e)
{
    static const char *const words[] = {"~", "null", "Null", "NULL"};
    if (!is_plain(e)) return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp((const char *)e->data.scalar.value, words[i])) return true;
    return false;
}

static bool is_null(const yaml_event_t *e)
{
    return is_null_word(e) || (is_plain(e) && !e->data.scalar.length);
}

/* The current scalar, shortened for error messages; every section name fits without loss. */
static void copy_name(const struct yaml_reader *y, char out[TEXT_SHOWN])
{
    text_shown((const char *)y->event.data.scalar.value, y->event.data.scalar.length, out);
}

struct parse_state {
    struct config *config;
    struct config_sources *sources;
    enum config_source source;
    size_t seen_line[CONFIG_KEYS_MAX]; /* line that set each key; 0: not set */
};

static enum status set_key(struct yaml_reader *y, struct parse_state *s, int index)
{
    const struct config_key *k = &config_keys[index];
    if (s->seen_line[index])
        return err_set(y->err, STATUS_INVALID, "%s:%zu: %s.%s is set twice, first on line %zu: keep one", y->where,
                       line_of(y), k->section, k->key, s->seen_line[index]);
    s->seen_line[index] = line_of(y);
    if (s->source == CONFIG_COORDINATOR && k->local)
        return err_set(y->err, STATUS_INVALID,
                       "%s:%zu: %s.%s is local to each machine and cannot come from the coordinator", y->where,
                       line_of(y), k->section, k->key);
    TRY(next(y));
    char what[96];
    snprintf(what, sizeof what, "%s.%s", k->section, k->key);
    TRY(expect_scalar(y, what));
    size_t line = line_of(y);
    if (is_null_word(&y->event))
        return err_set(y->err, STATUS_INVALID,
                       "%s:%zu: %s is %s, which means no value in YAML: remove the key or quote the value", y->where,
                       line, what, (const char *)y->event.data.scalar.value);
    enum status status = config_value_set(s->config, index, (const char *)y->event.data.scalar.value, y->err);
    if (status != STATUS_OK) {
        err_prefix(y->err, "%s:%zu", y->where, line);
        return status;
    }
    s->sources->of[index] = (uint8_t)s->source;
    s->sources->line[index] = (uint32_t)line;
    return STATUS_OK;
}

/* Reads the value of a key that the table does not hold. The current event is its name. */
static enum status skip_removed(struct yaml_reader *y, const char *section, const char *key)
{
    const char *full = (const char *)y->event.data.scalar.value;
    const struct config_removed *removed = config_removed_find(section, strlen(section), full, strlen(full));
    int nearest = config_key_nearest(section, key);
    size_t line = line_of(y);
    if (!removed)
        return err_set(y->err, STATUS_INVALID, "%s:%zu: unknown key %s.%s; the nearest is %s.%s", y->where, line,
                       section, key, config_keys[nearest].section, config_keys[nearest].key);
    TRY(next(y));
    TRY(expect_scalar(y, key));
    if (config_removed_check(removed, (const char *)y->event.data.scalar.value, y->err) == STATUS_OK) return STATUS_OK;
    return err_prefix(y->err, "%s:%zu", y->where, line);
}

/* Parses one section. The current event is its name. */
static enum status parse_section(struct yaml_reader *y, struct parse_state *s)
{
    char section[TEXT_SHOWN], key[TEXT_SHOWN];
    TRY(expect_scalar(y, "a section's name"));
    copy_name(y, section);
    size_t line = line_of(y);
    if (!config_section_exists(section) && !config_removed_section(section)) {
        int nearest = config_key_nearest("", section);
        TRY(next(y));
        if (y->event.type == YAML_SCALAR_EVENT) /* a key without its section */
            return err_set(y->err, STATUS_INVALID, "%s:%zu: key \"%s\" is outside a section; the nearest key is %s.%s",
                           y->where, line, section, config_keys[nearest].section, config_keys[nearest].key);
        return err_set(y->err, STATUS_INVALID, "%s:%zu: unknown section \"%s\"; the nearest is \"%s\"", y->where, line,
                       section, config_section_nearest(section));
    }
    TRY(next(y));
    if (is_null(&y->event)) return STATUS_OK; /* an empty section */
    char what[96];
    snprintf(what, sizeof what, "section %s", section);
    TRY(expect_mapping(y, what));
    for (;;) {
        TRY(next(y));
        if (y->event.type == YAML_MAPPING_END_EVENT) break;
        TRY(expect_scalar(y, "a key"));
        copy_name(y, key);
        const char *full = (const char *)y->event.data.scalar.value;
        int index = config_key_find(section, strlen(section), full, strlen(full));
        if (index < 0)
            TRY(skip_removed(y, section, key));
        else
            TRY(set_key(y, s, index));
    }
    return STATUS_OK;
}

static enum status parse_document(struct yaml_reader *y, struct parse_state *s)
{
    TRY(next(y)); /* stream start */
    TRY(next(y)); /* document start, or the end of an empty stream */
    if (y->event.type == YAML_STREAM_END_EVENT) return STATUS_OK;
    TRY(next(y));
    if (!is_null(&y->event)) {
        TRY(expect_mapping(y, "the file"));
        for (;;) {
            TRY(next(y));
            if (y->event.type == YAML_MAPPING_END_EVENT) break;
            TRY(parse_section(y, s));
        }
    }
    TRY(next(y)); /* document end */
    TRY(next(y));
    if (y->event.type != YAML_STREAM_END_EVENT)
        return err_set(y->err, STATUS_INVALID, "%s:%zu: a second YAML document starts here: keep one", y->where,
                       line_of(y));
    return STATUS_OK;
}

enum status config_parse(struct config *config, struct config_sources *sources, const char *text, size_t size,
                         const char *where, enum config_source source, struct err *err)
{
    if (size > CONFIG_TEXT_MAX)
        return err_set(err, STATUS_INVALID, "%s: larger than %d bytes: not a configuration file", where,
                       CONFIG_TEXT_MAX);
    if (size && memchr(text, 0, size))
        return err_set(err, STATUS_INVALID, "%s: contains NUL bytes: not a text file", where);
    struct yaml_reader y = {.where = where, .text = text, .size = size, .err = err};
    if (!yaml_parser_initialize(&y.parser)) return err_set(err, STATUS_NOMEM, "%s: out of memory", where);
    yaml_parser_set_input_string(&y.parser, (const unsigned char *)(size ? text : ""), size);
    /* Parse into copies: a refused text must not change *config. */
    struct config_sources sources_new = *sources;
    struct config config_new = *config;
    if (source == CONFIG_FILE) snprintf(sources_new.file, sizeof sources_new.file, "%s", where);
    struct parse_state s = {.config = &config_new, .sources = &sources_new, .source = source};
    enum status status = parse_document(&y, &s);
    if (y.have_event) yaml_event_delete(&y.event);
    yaml_parser_delete(&y.parser);
    if (status != STATUS_OK) return status;
    *config = config_new;
    *sources = sources_new;
    return STATUS_OK;
}

enum status config_load(struct config *config, struct config_sources *sources, const char *path, struct err *err)
{
    FILE *file = fopen(path, "re");
    if (!file) return err_set(err, STATUS_NOTFOUND, "%s: cannot open the file: %m", path);
    enum status status = STATUS_OK;
    char *text = mem_alloc(1, CONFIG_TEXT_MAX + 1);
    if (!text) {
        status = err_set(err, STATUS_NOMEM, "%s: out of memory", path);
        goto err_close;
    }
    size_t size = fread(text, 1, CONFIG_TEXT_MAX + 1, file);
    if (ferror(file))
        status = err_set(err, STATUS_IO, "%s: cannot read the file: %m", path);
    else
        status = config_parse(config, sources, text, size, path, CONFIG_FILE, err);
    mem_free(text);
err_close:
    fclose(file);
    return status;
}
