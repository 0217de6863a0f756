/* A temporary folder for one test. It is in memory if a gigabyte of memory is free, so that tests do not wait for a
 * disk. */
#ifndef TESTS_TMPDIR_H
#define TESTS_TMPDIR_H

extern char tmpdir[32];

/* Set-up and teardown of cmocka, for a group or for each test. The teardown removes the folder with its contents. It
 * returns -1 if it cannot, or if memory of mem_alloc is still allocated. */
int tmpdir_make(void **state);
int tmpdir_remove(void **state);
int tmpdir_remove_empty(void **state); /* the same, but the folder must be empty */

/* Remove a folder with its contents. */
void tmpdir_clear(const char *path);

/* Return the path of `name` in the folder. The result is valid until three more calls. */
const char *tmpdir_path(const char *name);
/* Write a file with this text; creates its folders. */
void tmpdir_put(const char *name, const char *text);
/* Remove a file that must exist. */
void tmpdir_take(const char *name);

#endif
