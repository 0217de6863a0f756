/* The main of a fuzzer built without libFuzzer. Every file, and every file of every folder, on the command line is
 * one input.
 * Each input runs unchanged, then truncated and with some bytes changed, in a deterministic way that extends the
 * corpus. -v prints each input, to find the one that crashes. */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 20, CUTS = 40, CHANGES = 100 };

static bool verbose;
static unsigned long runs;

/* Copies the input to an allocation of exactly `size` bytes, so that a sanitizer detects a read past the end. */
static void run(const char *path, const char *how, int k, const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) abort();
    memcpy(copy, data, size);
    if (verbose) fprintf(stderr, "%s %s %d\n", path, how, k);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    runs++;
}

static bool run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(INPUT_MAX), *changed = malloc(INPUT_MAX);
    if (!file || !data || !changed) {
        fprintf(stderr, "%s: cannot read", path);
        if (file) fclose(file);
        free(data);
        free(changed);
        return false;
    }
    size_t size = fread(data, 1, INPUT_MAX, file);
    fclose(file);
    run(path, "whole", 0, data, size);
    for (int k = 0; k < CUTS && (size_t)k < size; k++) run(path, "cut", k, data, size * (size_t)k / CUTS);
    for (int k = 0; k < CHANGES && size; k++) {
        memcpy(changed, data, size);
        for (int i = 0; i <= k % 4; i++) {
            uint64_t r = rng_u64((uint64_t)k, RNG_TEST, (uint64_t)i);
            size_t room = k & 1 && size > 64 ? 64 : size; /* change the header more often */
            changed[(r >> 16) % room] = r & 0x100 ? (uint8_t)r : changed[(r >> 16) % room] ^ (uint8_t)(1 << (r & 7));
        }
        run(path, "changed", k, changed, size);
    }
    free(data);
    free(changed);
    return true;
}

static bool run_folder_path(const char *path)
{
    struct stat st;
    if (stat(path, &st)) {
        fprintf(stderr, "%s: does not exist\n", path);
        return false;
    }
    if (!S_ISDIR(st.st_mode)) return run_file(path);
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    bool ok = n >= 0;
    for (int i = 0; i < n; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.') ok = run_file(name) && ok;
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return ok;
}

int main(int argc, char **argv)
{
    bool ok = true;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "-v"))
            verbose = true;
        else
            ok = run_folder_path(argv[i]) && ok;
    }
    printf("%lu inputs\n", runs);
    return ok && runs ? 0 : 1; /* an empty corpus tests nothing */
}
