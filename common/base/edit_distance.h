/* Distance of two names, for "did you mean". */
#ifndef COMMON_EDIT_DISTANCE_H
#define COMMON_EDIT_DISTANCE_H

enum { EDIT_DISTANCE_MAX = 48 };

/* Levenshtein distance: insertions, deletions and replacements that turn a into b. Compares only the
 * first EDIT_DISTANCE_MAX bytes of each string. */
int edit_distance(const char *a, const char *b);

#endif
