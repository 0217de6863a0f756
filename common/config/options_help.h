/* What a program says about its command line, from its table of options:
 *
 * - --help: for people.
 * - --help=man: a manual page; of a verb only its section.
 * - --help=words: for shell completion, one "WORD<tab>HELP" a line. A setting ends with '='.
 *
 * All print to stdout. */
#ifndef COMMON_OPTIONS_HELP_H
#define COMMON_OPTIONS_HELP_H

#include "common/config/options.h"

void options_help(const struct options *options);
void options_man(const struct options *options);
void options_words(const struct options *options);

/* Parts of a manual page for programs with verbs. `program` is the name, `about` one line. */
void options_man_begin(const char *program, const char *about);
/* Prints text as roff: special characters are escaped, and blanks after a line end are dropped. */
void options_man_text(const char *text);
/* Prints the sections that follow the options; `others` are the pages to see, ended by NULL. */
void options_man_end(bool resumable, const char *const *others);

#endif
