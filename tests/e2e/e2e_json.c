/* Reader of JSON files for the shell tests, because a bare system has no jq.
 *
 *   e2e_json get FILE KEY               prints the value of a top-level key: strings without quotes, others as JSON
 *   e2e_json keys FILE KEY...           checks that the object has every KEY
 *   e2e_json names FILE                 prints the top-level keys, sorted
 *   e2e_json lines FILE [EVENT KEY...]  checks that every line is an object with "time" and "event"; prints the values
 *                                       of KEY... of each EVENT line, separated by blanks ("-" for a missing key)
 *   e2e_json theta FILE                 prints the hash of all parameters in a model.safetensors, by the rule in
 *                                       docs/protocol.md, section 4, without the product's code
 * Exit codes: 0 success; 1 a check failed or the file cannot be read (one line on stderr); 2 wrong usage. */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static void value_print(const json_t *value)
{
    if (!value) {
        printf("-");
    } else if (json_is_string(value)) {
        printf("%s", json_string_value(value));
    } else {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
        printf("%s", text ? text : "?");
        free(text);
    }
}

static json_t *object_load(const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!root || !json_is_object(root)) {
        fprintf(stderr, "e2e_json: %s, line %d: %s\n", path, error.line, root ? "not an object" : error.text);
        json_decref(root);
        return NULL;
    }
    return root;
}

static int verb_get(const char *path, int n_keys, char **keys, int print)
{
    json_t *root = object_load(path);
    int bad = !root;
    for (int i = 0; root && i < n_keys; i++) {
        const json_t *value = json_object_get(root, keys[i]);
        if (!value) {
            fprintf(stderr, "e2e_json: %s has no key %s\n", path, keys[i]);
            bad = 1;
        } else if (print) {
            value_print(value);
            printf("\n");
        }
    }
    json_decref(root);
    return bad;
}

static int verb_names(const char *path)
{
    json_t *root = object_load(path);
    if (!root) return 1;
    char *text = json_dumps(root, JSON_SORT_KEYS);
    json_t *sorted = json_loads(text ? text : "{}", 0, NULL);
    const char *key;
    json_t *value;
    json_object_foreach(sorted, key, value) printf("%s\n", key);
    free(text);
    json_decref(sorted);
    json_decref(root);
    return 0;
}

static int verb_lines(const char *path, const char *event, int n_keys, char **keys)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int bad = !file, number = 0;
    if (!file) perror(path);
    while (file && !bad && getline(&line, &cap, file) > 0) {
        json_error_t error;
        json_t *root = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        const char *name = json_string_value(json_object_get(root, "event"));
        number++;
        if (!name || !json_is_number(json_object_get(root, "time"))) {
            fprintf(stderr, "e2e_json: %s, line %d is not an event: %s", path, number, line);
            bad = 1;
        } else if (event && strcmp(name, event) == 0) {
            for (int i = 0; i < n_keys; i++) {
                if (i) printf(" ");
                value_print(json_object_get(root, keys[i]));
            }
            printf("\n");
        }
        json_decref(root);
    }
    free(line);
    if (file) fclose(file);
    return bad;
}

/* The tensors follow the header without gaps, in the order of their names. */
static int verb_theta(const char *path)
{
    enum { BLOCK = 16384 * 4 };
    static uint8_t block[BLOCK];
    uint64_t head = 0, pair[2] = {0};
    FILE *file = fopen(path, "rb");
    int bad = !file || fread(&head, sizeof head, 1, file) != 1 || fseek(file, 0, SEEK_END);
    long at = (long)(sizeof head + head), end = bad ? 0 : ftell(file);
    bad = bad || end <= at || fseek(file, at, SEEK_SET);
    pair[0] = bad ? 0 : (uint64_t)(end - at) / 4;
    for (size_t n; !bad && (n = fread(block, 1, BLOCK, file)) > 0;) {
        pair[1] = XXH3_64bits(block, n);
        pair[0] = XXH3_64bits(pair, sizeof pair);
    }
    if (file) fclose(file);
    if (bad) return fprintf(stderr, "e2e_json: %s is not a safetensors file\n", path), 1;
    printf("%016llx\n", (unsigned long long)pair[0]);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "get") == 0) return verb_get(argv[2], 1, argv + 3, 1);
    if (argc >= 4 && strcmp(argv[1], "keys") == 0) return verb_get(argv[2], argc - 3, argv + 3, 0);
    if (argc == 3 && strcmp(argv[1], "names") == 0) return verb_names(argv[2]);
    if (argc >= 3 && strcmp(argv[1], "lines") == 0)
        return verb_lines(argv[2], argc > 3 ? argv[3] : NULL, argc > 4 ? argc - 4 : 0, argv + 4);
    if (argc == 3 && strcmp(argv[1], "theta") == 0) return verb_theta(argv[2]);
    fprintf(stderr,
            "usage: e2e_json get FILE KEY | keys FILE KEY... | names FILE | lines FILE [EVENT KEY...] | theta FILE\n");
    return 2;
}
