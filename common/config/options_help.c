#include "common/config/options.h"

#include <stdio.h>
#include <string.h>

#include "common/config/config_keys.h"

static const struct {
    enum exit_code code;
    const char *meaning;
} exit_codes[] = {
    {EXIT_DONE, "done"},
    {EXIT_FAILED, "failed; the last line says why"},
    {EXIT_USAGE, "wrong arguments or settings"},
    {EXIT_RESUMABLE, "stopped; the same command continues"}, /* the last one: only of some programs */
};

static int exit_code_count(bool resumable)
{
    int n = sizeof exit_codes / sizeof *exit_codes;
    return resumable ? n : n - 1;
}

/* --- for people --------------------------------------------------------------------------------------------------- */

void options_help(const struct options *o)
{
    printf("usage: %s %s\n\n%s\n", o->program, o->usage, o->about);
    printf("\noptions:\n");
    for (size_t i = 0; i < o->n_specs; i++) {
        char left[64];
        const struct option_spec *spec = &o->specs[i];
        snprintf(left, sizeof left, "--%s%s%s", spec->name, spec->value ? " " : "", spec->value ? spec->value : "");
        printf("  %-24s %s\n", left, spec->help);
    }
    if (o->settings_allowed)
        printf("  %-24s %s\n", "--section.key=value", "a setting of the run; `atoll config help` lists them");
    printf("  %-24s %s\n  %-24s %s\n", "--help", "this text", "--version", "the version");
    printf("\nexit codes:\n");
    for (int i = 0; i < exit_code_count(o->resumable); i++)
        printf("  %-24d %s\n", exit_codes[i].code, exit_codes[i].meaning);
}

/* --- manual pages ------------------------------------------------------------------------------------------------- */

void options_man_text(const char *text)
{
    for (bool start = true; *text; text++) {
        if (start && *text == ' ') continue;
        if (start && (*text == '.' || *text == '\'')) printf("\\&");
        start = *text == '\n';
        if (*text == '-')
            printf("\\-");
        else if (*text == '\\')
            printf("\\e");
        else
            putchar(*text);
    }
}

static void man_item(const char *name, const char *value, const char *help)
{
    printf(".TP\n.B ");
    options_man_text(name);
    if (value) printf(" ");
    if (value) options_man_text(value);
    printf("\n");
    options_man_text(help);
    printf("\n");
}

static void man_options(const struct options *o)
{
    char name[64];
    for (size_t i = 0; i < o->n_specs; i++) {
        snprintf(name, sizeof name, "--%s", o->specs[i].name);
        man_item(name, o->specs[i].value, o->specs[i].help);
    }
    if (o->settings_allowed)
        man_item("--section.key=value", NULL, "A setting of the run; atoll config help lists them.");
}

void options_man_begin(const char *program, const char *about)
{
    printf(".TH \"");
    options_man_text(program);
    printf("\" 1 \"\" \"atoll " ATOLL_VERSION "\" \"User Commands\"\n.SH NAME\n");
    options_man_text(program);
    printf(" \\- %.*s\n.SH SYNOPSIS\n.B ", (int)strcspn(about, ".\n"), about);
    options_man_text(program);
    printf("\n");
}

void options_man_end(bool resumable, const char *const *others)
{
    char code[16];
    printf(".SH EXIT STATUS\n");
    for (int i = 0; i < exit_code_count(resumable); i++) {
        snprintf(code, sizeof code, "%d", exit_codes[i].code);
        man_item(code, NULL, exit_codes[i].meaning);
    }
    printf(".SH SEE ALSO\n");
    for (; *others; others++) {
        printf(".BR ");
        options_man_text(*others);
        printf(" (1)%s\n", others[1] ? "," : "");
    }
}

void options_man(const struct options *o)
{
    static const char *const others[] = {"atoll", "atoll-coordinator", "atoll-worker", NULL};
    bool verb = strchr(o->program, ' ') != NULL;
    if (verb) {
        printf(".SS ");
        options_man_text(o->program);
        printf(" ");
    } else {
        options_man_begin(o->program, o->about);
    }
    options_man_text(o->usage);
    printf("\n%s", verb ? "" : ".SH DESCRIPTION\n");
    options_man_text(o->about);
    printf("\n%s", verb ? "" : ".SH OPTIONS\n");
    man_options(o);
    if (!verb) options_man_end(o->resumable, others);
}

/* --- completion --------------------------------------------------------------------------------------------------- */

void options_words(const struct options *o)
{
    for (size_t i = 0; i < o->n_specs; i++)
        printf("--%s\t%.*s\n", o->specs[i].name, (int)strcspn(o->specs[i].help, "\n"), o->specs[i].help);
    printf("--help\tthis text\n--version\tthe version\n");
    for (int i = 0; o->settings_allowed && i < config_keys_count; i++)
        printf("--%s.%s=\t%s\n", config_keys[i].section, config_keys[i].key, config_keys[i].help);
}
