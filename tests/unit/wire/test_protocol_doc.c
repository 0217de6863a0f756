/* docs/protocol.md matches the code: names, numbers, lanes, directions, every field with its type and bounds, every
 * limit and code, the heads of objects. docs/recovery.md does so for the formats of files. */
#include <inttypes.h>

#include "common/tensor/frozen.h"
#include "coordinator/ledger/checkpoint.h"
#include "tests/lib/test.h"
#include "wire/initial.h"
#include "wire/model_object.h"
#include "wire/msg_table.h"
#include "worker/outer/rank_file.h"
#include "worker/outer/worker_state.h"

static char doc[1 << 17], files_doc[1 << 16];

static int read_doc(const char *path, char *out, size_t cap)
{
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    size_t n = fread(out, 1, cap - 1, f);
    out[n] = 0;
    return fclose(f) || n == cap - 1;
}

static int read_docs(void **state)
{
    (void)state;
    return read_doc("docs/protocol.md", doc, sizeof doc) || read_doc("docs/recovery.md", files_doc, sizeof files_doc);
}

struct text {
    char s[2048];
    size_t n;
};

static void add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    t->n += (size_t)vsnprintf(t->s + t->n, sizeof t->s - t->n, fmt, args);
    va_end(args);
    assert_true(t->n < sizeof t->s);
}

static void add_integer(struct text *t, const struct field *f, const char *type, uint64_t top)
{
    add(t, "%s", type);
    if (f->min || f->max != top) add(t, " %" PRIu64 "..%" PRIu64, f->min, f->max);
}

/* The member without the struct around it. */
static const char *name_of(const struct field *f)
{
    const char *dot = strrchr(f->name, '.');
    return dot ? dot + 1 : f->name;
}

static void add_type(struct text *t, const struct field *f, const struct field *table);

static void add_fields(struct text *t, const struct field *table)
{
    for (const struct field *f = table; f->kind != FIELD_END; f++) {
        add(t, "%s%s ", f == table ? "" : ", ", name_of(f));
        add_type(t, f, table);
    }
}

static void add_list(struct text *t, const struct field *f, const struct field *table)
{
    add(t, "{");
    add_fields(t, f->items);
    add(t, "}");
    if (f->count_at == FIELD_ALL) {
        if (f->max > 1) add(t, "[%" PRIu64 "]", f->max);
        return;
    }
    while (table->kind != FIELD_END && table->at != f->count_at) table++; /* the row of the count */
    add(t, "[%s]", table->name ? table->name : "n_fragments");
}

static const char *const_type(const struct field *f)
{
    return f->max == 4 ? "u32" : f->max == 2 ? "u16" : "u8";
}

static void add_type(struct text *t, const struct field *f, const struct field *table)
{
    switch (f->kind) {
    case FIELD_U8: add_integer(t, f, "u8", UINT8_MAX); break;
    case FIELD_U16: add_integer(t, f, "u16", UINT16_MAX); break;
    case FIELD_U32: add_integer(t, f, "u32", UINT32_MAX); break;
    case FIELD_U64: add_integer(t, f, "u64", UINT64_MAX); break;
    case FIELD_BOOL: add(t, "bool"); break;
    case FIELD_F32: add(t, "f32"); break;
    case FIELD_F64: add(t, "f64"); break;
    case FIELD_F32_ANY: add(t, "f32 any"); break;
    case FIELD_F64_ANY: add(t, "f64 any"); break;
    case FIELD_BOOLS: add(t, "u8 0..3"); break;
    case FIELD_BYTES: add(t, f->max == WIRE_UUID ? "uuid" : "key"); break;
    case FIELD_CONST: add(t, "%s", const_type(f)); break;
    case FIELD_LINE: add(t, "line %" PRIu64 "..%" PRIu64, f->min, f->max); break;
    case FIELD_REMARK: add(t, "remark %" PRIu64 "..%" PRIu64, f->min, f->max); break;
    case FIELD_TEXT: add(t, "text %" PRIu64 "..%" PRIu64, f->min, f->max); break;
    case FIELD_BLOB: add(t, "bytes %" PRIu64 "..%" PRIu64, f->min, f->max); break;
    case FIELD_LIST: add_list(t, f, table); break;
    case FIELD_END: break;
    }
}

/* Reads the line at *at, without its end, and advances *at. NULL at the end of the document. */
static const char *next_line(const char **at, char *line, size_t cap)
{
    if (!**at) return NULL;
    size_t n = strcspn(*at, "\n");
    assert_true(n < cap);
    memcpy(line, *at, n);
    line[n] = 0;
    *at += n + ((*at)[n] == '\n');
    return line;
}

static void check_message(enum msg_type type, const char *name, const char *lane, const char *arrow)
{
    char line[1024];
    struct text want = {.n = 0};
    add(&want, "\n### %s (%d)\n%s %s.", name, type, lane, arrow);
    const char *at = strstr(doc, want.s);
    if (!at) fail_msg("docs/protocol.md lacks the heading and first line \"%s\"", want.s + 1);
    at += want.n;
    const char *end = strstr(at, "\n##");
    const struct field *fields = msg_spec_of(type)->fields;
    for (const struct field *f = fields; f->kind != FIELD_END; f++) {
        struct text row = {.n = 0};
        add(&row, "| `%s` | ", f->name);
        add_type(&row, f, fields);
        add(&row, " |");
        do {
            if (at >= end || !next_line(&at, line, sizeof line))
                fail_msg("%s: row %s is missing or in another place", name, row.s);
        } while (strncmp(line, "| `", 3));
        if (strncmp(line, row.s, row.n)) fail_msg("%s: the document has \"%s\", the code \"%s\"", name, line, row.s);
    }
    while (at < end && next_line(&at, line, sizeof line))
        if (!strncmp(line, "| `", 3)) fail_msg("%s: the code has no field for %s", name, line);
}

TEST(test_document_lists_every_message)
{
    static const char *const lanes[] = {[WIRE_CONTROL] = "control", [WIRE_BULK] = "bulk"};
    enum { W, C, B };
    static const char *const arrows[] = {"\xe2\x86\x92", "\xe2\x86\x90", "\xe2\x86\x94"};
#define CHECK(name, number, lane, direction) check_message(MSG_##name, #name, lanes[WIRE_##lane], arrows[direction]);
    MSG_MAP(CHECK)
#undef CHECK
}

static void check_number(const char *name, long long value)
{
    struct text row = {.n = 0};
    add(&row, "\n| `%s` | %lld |", name, value);
    if (!strstr(doc, row.s)) fail_msg("docs/protocol.md lacks %s", row.s + 1);
}

TEST(test_document_lists_every_limit_and_code)
{
#define NUMBER(name) check_number(#name, name)
    NUMBER(WIRE_VERSION), NUMBER(WIRE_HEADER), NUMBER(WIRE_CHUNK_MAX), NUMBER(WIRE_BODY_MAX), NUMBER(WIRE_NAME_MAX);
    NUMBER(WIRE_TEXT_MAX), NUMBER(WIRE_CONFIG_MAX), NUMBER(WIRE_STATUS_MAX), NUMBER(WIRE_RANGES_MAX);
    NUMBER(WIRE_METRICS_MAX), NUMBER(WIRE_NAMED_MAX), NUMBER(WIRE_UUID), NUMBER(WIRE_KEY);
    NUMBER(LAYOUT_FRAGMENTS_MAX), NUMBER(LAYOUT_TENSORS_MAX), NUMBER(FROZEN_MAX);
    NUMBER(REFUSE_VERSION), NUMBER(REFUSE_RUN), NUMBER(REFUSE_CONFIG), NUMBER(REFUSE_LAYOUT), NUMBER(REFUSE_DATASET);
    NUMBER(REFUSE_FULL), NUMBER(REFUSE_NAME), NUMBER(REFUSE_UNKNOWN_SESSION), NUMBER(REFUSE_GONE);
    NUMBER(REFUSE_MALFORMED), NUMBER(REFUSE_KEY), NUMBER(REFUSE_SPENT);
    NUMBER(REJECT_LATE), NUMBER(REJECT_STALE), NUMBER(REJECT_BASE), NUMBER(REJECT_NONFINITE), NUMBER(REJECT_CORRUPT);
    NUMBER(REJECT_UNASSIGNED);
    NUMBER(DELTA_PSEUDO_GRADIENT), NUMBER(DELTA_PARAMETERS), NUMBER(DELTA_GRADIENT);
    NUMBER(UPDATE_INCREMENT), NUMBER(UPDATE_PARAMETERS);
    NUMBER(WORKER_CATCHING_UP), NUMBER(WORKER_READY), NUMBER(WORKER_TRAINING), NUMBER(WORKER_SENDING);
    NUMBER(WORKER_WAITING), NUMBER(WORKER_EVALUATING), NUMBER(WORKER_FINISHED);
    NUMBER(OBJECT_DELTA), NUMBER(OBJECT_UPDATE), NUMBER(OBJECT_SNAPSHOT), NUMBER(OBJECT_INITIAL);
    NUMBER(FETCH_UPDATE), NUMBER(FETCH_SNAPSHOT), NUMBER(FETCH_MODEL), NUMBER(FETCH_FILE), NUMBER(WIRE_FETCH_MAX);
}

/* The lines with an offset, under a heading: offset and type of each field before the first one with a variable size.
 */
static void check_head(const char *heading, const struct field *table)
{
    const char *at = strstr(doc, heading);
    if (!at) fail_msg("docs/protocol.md lacks \"%s\"", heading);
    size_t offset = 0;
    for (const struct field *f = table; f->kind != FIELD_END && f->kind != FIELD_LINE && f->kind != FIELD_LIST; f++) {
        struct text row = {.n = 0};
        struct field any = *f;
        const struct field one[] = {*f, {.kind = FIELD_END}};
        const uint64_t tops[] = {[FIELD_U8] = UINT8_MAX, [FIELD_U32] = UINT32_MAX, [FIELD_U64] = UINT64_MAX};
        if (f->kind <= FIELD_U64) any = (struct field){.kind = f->kind, .max = tops[f->kind]};
        add(&row, "\n%2zu   ", offset);
        add_type(&row, &any, NULL);
        add(&row, " ");
        at = strstr(at, row.s);
        if (!at) fail_msg("%s: field %s: docs/protocol.md lacks \"%s\"", heading, f->name, row.s + 1);
        uint8_t none[8192] = {0};
        offset += fields_size(one, none);
    }
}

TEST(test_document_lists_heads_of_objects)
{
    check_head("An **update** is", update_fields);
    check_head("A **snapshot** is", snapshot_head_fields);
    check_head("An **initial model** is", initial_head_fields);
    check_head("A **description** of the model", model_object_fields);
}

/* The next row of the table of formats. */
static void check_format(const char **at, const char *name, const struct field *table)
{
    struct text row = {.n = 0};
    add(&row, "\n| %s | ", name);
    add_fields(&row, table);
    add(&row, " |\n");
    *at = *at ? strstr(*at, row.s) : NULL;
    if (!*at) fail_msg("docs/recovery.md lacks, or has in another place:%s", row.s);
}

TEST(test_document_lists_formats_of_files)
{
    const char *at = strstr(files_doc, "\n## File formats\n");
    check_format(&at, "header", journal_header_fields);
    for (uint16_t type = RECORD_RUN; record_name(type); type++) {
        struct text name = {.n = 0};
        add(&name, "`%s` (%d)", record_name(type), type);
        check_format(&at, name.s, record_fields(type));
        if (record_more(type)) check_format(&at, type == RECORD_OPEN ? "each grant" : "the rest", record_more(type));
    }
    for (const struct field_part *part = checkpoint_parts; part->name; part++)
        check_format(&at, part->name, part->fields);
    for (const struct field_part *part = saved_state_parts; part->name; part++)
        check_format(&at, part->name, part->fields);
    for (const struct field_part *part = rank_file_parts; part->name; part++)
        check_format(&at, part->name, part->fields);
}

TEST_MAIN(read_docs, NULL)
