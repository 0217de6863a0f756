/* Verbs of the Python package: `atoll VERB` runs the program atoll-VERB from PATH, as git does. */
#ifndef CLI_PACKAGE_VERB_H
#define CLI_PACKAGE_VERB_H

#include <stdbool.h>

#include "common/base/status.h"

/* No package index has it: the source tree makes it. */
#define PACKAGE_INSTALL "./run python, or ./run wheel for other machines"

/* Returns true if PATH has a program atoll-VERB that this user may execute. */
bool package_has(const char *verb);
/* Replaces this process by atoll-VERB. Its exit code and signals are then those of `atoll`.
 *
 * - words[0]: any text; words[1 ..]: arguments of the program, the last one NULL.
 * - NOTFOUND: PATH has no such program. IO: it cannot be started. INVALID: no verb has such a name. */
enum status package_run(const char *verb, char **words, struct err *err) MUST_CHECK;
/* Keeps the words of a verb for package_take, because options_parse reorders argv. */
void package_keep_words(int argc, char *const *argv);
/* The same as package_run with the kept words, for a verb that is also built in. `why` names the input or option that
 * needs the package: without the package the error is INVALID and says how to install it. */
enum status package_take(const char *verb, const char *why, struct err *err) MUST_CHECK;

#endif
