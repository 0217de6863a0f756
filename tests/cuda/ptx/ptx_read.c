#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/kernels/cuda_mma.h"
#include "tests/cuda/ptx/ptx.h"
#include "tests/cuda/ptx/ptx_impl.h"
#include "tests/cuda/ptx/ptx_text.h"

#define UNWRITTEN 0xdeadbeefdeadbeefu /* value of a register before its first write */

enum { SYMBOLS_MAX = 2 * PTX_SLOTS_MAX, VARIABLES_MAX = 64, NOT_YET = -1 };

/* A register, constant or label of the current kernel. */
struct symbol {
    struct ptx_word word;
    int64_t value; /* slot or instruction, or NOT_YET */
};

/* An array in shared memory; it gets an offset where a kernel first names it. */
struct variable {
    struct ptx_word word;
    unsigned bytes, align;
    int64_t at; /* NOT_YET */
};

struct reader {
    struct ptx_text text;
    struct ptx_kernel *kernel;
    struct ptx_word parameter;
    size_t insns_cap;
    struct symbol symbols[SYMBOLS_MAX]; /* hash table */
    struct variable variables[VARIABLES_MAX];
    size_t n_variables;
    bool full; /* an array without a size took the rest of shared memory */
};

static const struct {
    const char *name;
    unsigned operands;
} ops[] = {
#define X(name, operands, ...) {#name, operands},
#include "tests/cuda/ptx/ptx_body.h"
#undef X
};

/* --- symbols ------------------------------------------------------------------------------------------------------ */

static struct symbol *symbol_of(struct reader *r, struct ptx_word word)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < word.n; i++) hash = (hash ^ (unsigned char)word.at[i]) * 16777619u;
    for (size_t tries = 0; tries < SYMBOLS_MAX; tries++) {
        struct symbol *s = &r->symbols[(hash + tries) % SYMBOLS_MAX];
        if (!s->word.at) *s = (struct symbol){.word = word, .value = NOT_YET};
        if (ptx_same(s->word, word)) return s;
    }
    ptx_cannot(&r->text, "more than %d symbols in a kernel", SYMBOLS_MAX);
}

static uint16_t slot_of(struct reader *r, struct ptx_word word, uint64_t value)
{
    struct symbol *s = symbol_of(r, word);
    struct ptx_kernel *k = r->kernel;
    if (s->value == NOT_YET) {
        if (k->n_slots == PTX_SLOTS_MAX) ptx_cannot(&r->text, "more than %d registers and constants", PTX_SLOTS_MAX);
        k->slots[k->n_slots].u64 = value;
        s->value = (int64_t)k->n_slots++;
    }
    return (uint16_t)s->value;
}

/* Offset of the array in the kernel's shared memory. */
static uint64_t place_of(struct reader *r, struct variable *v)
{
    if (v->at == NOT_YET) {
        if (r->full) ptx_cannot(&r->text, "%.*s follows an array without a size", (int)v->word.n, v->word.at);
        r->full = !v->bytes;
        v->at = (r->kernel->shared_bytes + v->align - 1) / v->align * v->align;
        r->kernel->shared_bytes = v->bytes ? (unsigned)v->at + v->bytes : (unsigned)MMA_SHARED_MAX;
        if (r->kernel->shared_bytes > (unsigned)MMA_SHARED_MAX) ptx_cannot(&r->text, "too much shared memory");
    }
    return (uint64_t)v->at;
}

static uint16_t constant_of(struct reader *r, struct ptx_word word)
{
    char *end;
    const char *from = word.at;
    int base = 0;
    if (word.n > 2 && word.at[0] == '0' && (word.at[1] == 'f' || word.at[1] == 'd')) from += 2, base = 16;
    uint64_t value = *from == '-' ? (uint64_t)strtoll(from, &end, base) : strtoull(from, &end, base);
    if (end != word.at + word.n) ptx_cannot(&r->text, "%.*s is not a constant", (int)word.n, word.at);
    return slot_of(r, word, value);
}

static uint16_t named(struct reader *r, struct ptx_word word)
{
    static const struct {
        const char *name;
        uint16_t slot;
    } own[] = {{"%tid.x", PTX_TID},
               {"%ntid.x", PTX_NTID},
               {"%ctaid.x", PTX_CTAID_X},
               {"%ctaid.y", PTX_CTAID_Y},
               {"%nctaid.x", PTX_NCTAID}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (ptx_is(word, own[i].name)) return own[i].slot;
    if (symbol_of(r, word)->value != NOT_YET) return slot_of(r, word, 0); /* a declared register */
    /* %r12 is declared as %r<24>. Special registers such as %laneid and %tid.y are not supported. */
    if (*word.at == '%' && isdigit((unsigned char)word.at[word.n - 1])) return slot_of(r, word, UNWRITTEN);
    if (ptx_same(word, r->parameter)) return slot_of(r, word, 0);
    for (size_t i = 0; i < r->n_variables; i++)
        if (ptx_same(word, r->variables[i].word)) return slot_of(r, word, place_of(r, &r->variables[i]));
    ptx_cannot(&r->text, "%.*s is unknown", (int)word.n, word.at);
}

/* --- instructions ------------------------------------------------------------------------------------------------- */

struct operands {
    unsigned n, n_addresses;
    bool parted, joined; /* parted: the first operand is a vector; joined: another one is */
};

static void take_value(struct reader *r, struct ptx_insn *in, struct operands *o)
{
    bool number = isdigit((unsigned char)ptx_next(&r->text)) || *r->text.at == '-';
    struct ptx_word word = {.at = r->text.at};
    word.n = ptx_take(&r->text, '-');
    word.n += ptx_word(&r->text).n;
    if (o->n == PTX_OPERANDS) ptx_cannot(&r->text, "more than %d operands", PTX_OPERANDS);
    in->slot[o->n++] = number ? constant_of(r, word) : named(r, word);
}

static void take_operand(struct reader *r, struct ptx_insn *in, struct operands *o)
{
    if (ptx_take(&r->text, '{')) {
        if (o->n)
            o->joined = true;
        else
            o->parted = true;
        do take_value(r, in, o);
        while (ptx_take(&r->text, ','));
        ptx_want(&r->text, '}');
    } else if (ptx_take(&r->text, '[')) {
        if (o->n_addresses == PTX_ADDRESSES) ptx_cannot(&r->text, "more than %d addresses", PTX_ADDRESSES);
        take_value(r, in, o);
        in->offset[o->n_addresses++] = ptx_take(&r->text, '+') ? ptx_number(&r->text) : 0;
        ptx_want(&r->text, ']');
    } else {
        take_value(r, in, o);
        if (ptx_take(&r->text, '|')) take_value(r, in, o);
    }
}

static void find_op(struct reader *r, struct ptx_insn *in, struct ptx_word mnemonic, const struct operands *o)
{
    char name[96];
    bool move = !strncmp(mnemonic.at, "mov.", 4);
    int n = snprintf(name, sizeof name, "%.*s%s", (int)mnemonic.n, mnemonic.at,
                     !move       ? ""
                     : o->joined ? ".joined"
                     : o->parted ? ".parted"
                                 : "");
    for (int i = 0; i < n; i++)
        if (name[i] == '.' || name[i] == ':') name[i] = '_';
    for (in->op = 0; in->op < sizeof ops / sizeof *ops; in->op++) {
        if (strcmp(name, ops[in->op].name) != 0) continue;
        if (ops[in->op].operands != o->n) ptx_cannot(&r->text, "%s with %u operands", name, o->n);
        return;
    }
    ptx_cannot(&r->text, "unknown instruction %s: add it to tests/cuda/ptx/ptx_body.h", name);
}

static void take_insn(struct reader *r)
{
    struct ptx_kernel *k = r->kernel;
    struct ptx_insn in = {.line = ptx_line(&r->text)};
    struct operands o = {0};
    if (ptx_take(&r->text, '@')) {
        in.when = ptx_take(&r->text, '!') ? PTX_UNLESS : PTX_IF;
        in.guard = named(r, ptx_word(&r->text));
    }
    struct ptx_word mnemonic = ptx_word(&r->text);
    if (ptx_is(mnemonic, "bra") || ptx_is(mnemonic, "bra.uni")) {
        in.target = (uint32_t)(symbol_of(r, ptx_word(&r->text)) - r->symbols); /* resolved at the end of the kernel */
    } else if (ptx_next(&r->text) != ';') {
        do take_operand(r, &in, &o);
        while (ptx_take(&r->text, ','));
    }
    ptx_want(&r->text, ';');
    find_op(r, &in, mnemonic, &o);
    if (k->n_insns == r->insns_cap) {
        r->insns_cap = r->insns_cap ? 2 * r->insns_cap : 256;
        k->insns = ptx_memory(&r->text, k->insns, r->insns_cap * sizeof *k->insns);
    }
    k->insns[k->n_insns++] = in;
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

/* Parse ".align 16 .b8 name[32]", with or without a size. Returns the name and sets the size in bytes. */
static struct ptx_word take_array(struct reader *r, unsigned *bytes, unsigned *align)
{
    struct ptx_word word = ptx_word(&r->text);
    *align = 1;
    if (ptx_is(word, ".align")) {
        *align = (unsigned)ptx_number(&r->text);
        word = ptx_word(&r->text);
    }
    if (word.n < 3) ptx_cannot(&r->text, "%.*s is not a type", (int)word.n, word.at);
    *bytes = (unsigned)strtoul(word.at + 2, NULL, 10) / 8; /* .b8, .f32 */
    struct ptx_word name = ptx_word(&r->text);
    if (!ptx_take(&r->text, '[')) return name;
    *bytes *= ptx_next(&r->text) == ']' ? 0 : (unsigned)ptx_number(&r->text);
    ptx_want(&r->text, ']');
    return name;
}

static void take_variable(struct reader *r)
{
    if (r->n_variables == VARIABLES_MAX) ptx_cannot(&r->text, "more than %d arrays in shared memory", VARIABLES_MAX);
    struct variable *v = &r->variables[r->n_variables++];
    v->at = NOT_YET;
    v->word = take_array(r, &v->bytes, &v->align);
    ptx_want(&r->text, ';');
}

/* _Z24cuda_rms_fwd_fp32_kernel13cuda_rms_args: the number is the length of the name; the result is cuda_rms_fwd_fp32.
 */
static char *plain_name(struct reader *r, struct ptx_word mangled)
{
    const char *digits = mangled.at + strcspn(mangled.at, "0123456789");
    char *from;
    size_t n = strtoul(digits, &from, 10);
    if (!n || from + n > mangled.at + mangled.n)
        ptx_cannot(&r->text, "%.*s is not the name of a kernel", (int)mangled.n, mangled.at);
    size_t ending = strlen("_kernel");
    if (n <= ending || strncmp(from + n - ending, "_kernel", ending) != 0)
        ptx_cannot(&r->text, "a kernel called %.*s", (int)n, from);
    char *name = ptx_memory(&r->text, NULL, n - ending + 1);
    memcpy(name, from, n - ending);
    name[n - ending] = '\0';
    return name;
}

static void kernel_begin(struct reader *r, struct ptx_kernel *others)
{
    unsigned align, bytes;
    struct ptx_kernel *k = r->kernel = ptx_memory(&r->text, NULL, sizeof *k);
    *k = (struct ptx_kernel){.next = others, .name = plain_name(r, ptx_word(&r->text)), .n_slots = PTX_OWN};
    k->slots = ptx_memory(&r->text, NULL, PTX_SLOTS_MAX * sizeof *k->slots);
    memset(k->slots, 0, PTX_SLOTS_MAX * sizeof *k->slots);
    memset(r->symbols, 0, sizeof r->symbols);
    for (size_t i = 0; i < r->n_variables; i++) r->variables[i].at = NOT_YET;
    r->insns_cap = 0;
    r->full = false;
    ptx_want(&r->text, '(');
    if (!ptx_is(ptx_word(&r->text), ".param")) ptx_cannot(&r->text, "a kernel without a parameter");
    r->parameter = take_array(r, &bytes, &align);
    k->args_bytes = bytes;
    ptx_want(&r->text, ')'); /* one struct, see gpu/cuda/kernels/cuda_kernel.h */
}

static void kernel_end(struct reader *r)
{
    struct ptx_kernel *k = r->kernel;
    for (size_t i = 0; i < k->n_insns; i++) {
        struct ptx_insn *in = &k->insns[i];
        if (in->op != PTX_OP_bra && in->op != PTX_OP_bra_uni) continue;
        const struct symbol *label = &r->symbols[in->target];
        if (label->value == NOT_YET)
            ptx_cannot(&r->text, "the label %.*s is missing", (int)label->word.n, label->word.at);
        in->target = (uint32_t)label->value;
    }
    const struct ptx_insn *last = k->n_insns ? &k->insns[k->n_insns - 1] : NULL;
    if (!last || last->when != PTX_ALWAYS || (last->op != PTX_OP_ret && last->op != PTX_OP_bra_uni))
        ptx_cannot(&r->text, "%s does not end with ret or a branch", k->name);
}

/* Parse a directive, which starts with a dot. Its type and names follow; the rest of the line is ignored. */
static void take_directive(struct reader *r, struct ptx_kernel **kernels)
{
    struct ptx_word word = ptx_word(&r->text);
    if (ptx_is(word, ".entry")) {
        kernel_begin(r, *kernels);
        *kernels = r->kernel;
    } else if (ptx_is(word, ".shared")) {
        take_variable(r);
    } else if (ptx_is(word, ".reg")) {
        ptx_word(&r->text); /* skip the type */
        struct ptx_word name = ptx_word(&r->text);
        if (ptx_next(&r->text) == ';') slot_of(r, name, UNWRITTEN);
        ptx_skip_to(&r->text, ';');
        ptx_want(&r->text, ';');
    } else if (ptx_is(word, ".version") || ptx_is(word, ".target") || ptx_is(word, ".address_size") ||
               ptx_is(word, ".maxntid") || ptx_is(word, ".minnctapersm") || ptx_is(word, ".pragma")) {
        ptx_skip_to(&r->text, '\n');
    } else if (!ptx_is(word, ".visible") && !ptx_is(word, ".extern")) {
        ptx_cannot(&r->text, "%.*s is unknown", (int)word.n, word.at);
    }
}

struct ptx_kernel *ptx_read(const char *path, struct ptx_kernel *others)
{
    static struct reader r;
    struct ptx_text *t = &r.text;
    unsigned depth = 0;
    r = (struct reader){0};
    ptx_text_open(t, path);
    while (ptx_next(t)) {
        if (ptx_next(t) == '.') {
            take_directive(&r, &others);
        } else if (ptx_take(t, '{')) {
            depth++;
        } else if (ptx_take(t, '}')) {
            if (!depth) ptx_cannot(t, "unexpected }");
            if (!--depth) kernel_end(&r);
        } else if (!depth) {
            ptx_cannot(t, "unexpected text outside of a kernel: \"%.10s\"", t->at);
        } else if (ptx_next(t) == '$') {
            symbol_of(&r, ptx_word(t))->value = (int64_t)r.kernel->n_insns;
            ptx_want(t, ':');
        } else {
            take_insn(&r);
        }
    }
    ptx_text_close(t);
    return others;
}
