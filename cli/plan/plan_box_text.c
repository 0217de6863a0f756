#include "cli/plan/plan_box_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "common/os/host_memory.h"
#include "common/os/json_file.h"

static const char *const class_names[PLAN_GPU_CLASSES] = {"parameters",  "gradients", "moments", "in use",
                                                          "activations", "logits",    "reserve"};
static const char *const class_keys[PLAN_GPU_CLASSES] = {"parameters",  "gradients", "moments", "in_use",
                                                         "activations", "logits",    "reserve"};

static int class_width(int c)
{
    return (int)strlen(class_names[c]) + 2;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

/* Seconds of a round in which the ranks and rank 0 copy, encode and apply, and in which bytes are under way or the
 * coordinator works. */
static double inside_s(const struct plan *p)
{
    return p->costs.place_s + p->run.parts_s[PLAN_COMPRESS] + p->run.parts_s[PLAN_APPLY];
}

static double outside_s(const struct plan *p)
{
    return p->run.parts_s[PLAN_SEND] + p->run.parts_s[PLAN_WAIT];
}

static double bytes_each(uint64_t bytes, const struct plan *p, uint32_t workers)
{
    return (double)bytes / ((double)p->run.rounds * workers);
}

static const char *verdict(const struct plan_gpu *g)
{
    if (!g->fits) return "no";
    return g->recompute ? "with activation checkpointing" : "yes";
}

static void print_way(const struct plan_gpu *g, enum plan_way way)
{
    printf("%-13s", plan_way_name(way));
    for (int c = 0; c < PLAN_GPU_CLASSES; c++) printf("%*.1f", class_width(c), gib(g->bytes[c]));
    printf("%8.1f  %s\n", gib(g->total), verdict(g));
}

void plan_box_print_memory(const struct plan *p, const struct plan_box *box)
{
    const struct plan_box_memory *m = &p->box;
    char text[MEMORY_TEXT_MAX];
    printf("box          %" PRIu32 " GPUs of %g GiB; %s, AdamW, %" PRIu32 " x %" PRIu32 " tokens a GPU at once\n\n",
           box->gpus, box->gpu_gib, p->config.train.precision == PRECISION_BF16 ? "bf16" : "fp32",
           p->config.train.batch_size / box->gpus, p->config.model.block_size);
    printf("%-13s", "GiB a GPU");
    for (int c = 0; c < PLAN_GPU_CLASSES; c++) printf("%*s", class_width(c), class_names[c]);
    printf("%8s  fits\n", "in all");
    for (int way = 0; way < PLAN_WAYS; way++) print_way(&m->ways[way], (enum plan_way)way);
    printf("\nhost         %s a box: ", memory_text(m->host, text));
    printf("theta %.1f, change %.1f, messages %.1f, arriving %.1f GiB\n", gib(m->theta), gib(m->change),
           gib(m->messages), gib(m->inbox));
    printf("coordinator  %s\n", memory_text(p->memory.coordinator_bytes, text));
    printf("disk         3 states of %s a box; one is written in %s on a disk like this one's\n",
           units_bytes((double)m->saved).text, units_duration(p->costs.save_s).text);
    if (m->copy)
        printf("             saved beside the training: %s more of host memory\n", memory_text(m->copy, text));
    else
        printf("             an exchange waits for it; not with checkpoint.worker_every auto\n");
}

/* Seconds of these bytes alone on a line of this rate; 0: no limit. */
static double line_s(double bytes, double mbit)
{
    return mbit > 0 ? bytes * 8e-6 / mbit : 0;
}

static void print_exchange(const char *name, const struct plan *p, const struct plan_box_view *v)
{
    double up = bytes_each(p->run.bytes_up, p, v->workers), down = bytes_each(p->run.bytes_down, p, v->workers);
    printf("%-12s %s: in the box %s, link and coordinator %s\n", name, units_duration(inside_s(p) + outside_s(p)).text,
           units_duration(inside_s(p)).text, units_duration(outside_s(p)).text);
    printf("             each box sends %s (%s on its link) and receives %s (%s); the coordinator computes %s\n",
           units_bytes(up).text, units_duration(line_s(up, v->link->up_mbit)).text, units_bytes(down).text,
           units_duration(line_s(down, v->link->down_mbit)).text,
           units_duration(plan_coordinator_s(p, v->workers)).text);
}

void plan_box_print_exchange(const struct plan_box_view *v)
{
    char text[MEMORY_TEXT_MAX];
    printf("\n");
    print_exchange("exchange", v->plan, v);
    print_exchange("with LoRA", v->lora, v);
    printf("             rank %" PRIu32 ", %s parameters; coordinator %s\n", v->box->lora_rank,
           units_count((double)v->plan->box.adapters).text, memory_text(v->lora->memory.coordinator_bytes, text));
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static json_t *exchange_json(const struct plan *p, const struct plan_box_view *v)
{
    double up = bytes_each(p->run.bytes_up, p, v->workers), down = bytes_each(p->run.bytes_down, p, v->workers);
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I}", "box_s", inside_s(p), "link_s", outside_s(p), "up_s",
                     line_s(up, v->link->up_mbit), "down_s", line_s(down, v->link->down_mbit), "coordinator_s",
                     plan_coordinator_s(p, v->workers), "bytes_up", up, "bytes_down", down, "params",
                     (json_int_t)p->params, "coordinator", (json_int_t)p->memory.coordinator_bytes);
}

static json_t *way_json(const struct plan_gpu *g, enum plan_way way)
{
    json_t *o = json_pack("{s:s,s:b,s:b,s:I}", "way", plan_way_name(way), "fits", g->fits, "activation_checkpointing",
                          g->recompute, "total", (json_int_t)g->total);
    for (int c = 0; c < PLAN_GPU_CLASSES; c++) json_put_count(o, class_keys[c], g->bytes[c]);
    return o;
}

json_t *plan_box_json(const struct plan_box_view *v)
{
    const struct plan_box_memory *m = &v->plan->box;
    json_t *ways = json_array();
    for (int way = 0; way < PLAN_WAYS; way++) json_array_append_new(ways, way_json(&m->ways[way], (enum plan_way)way));
    json_t *host = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "copy", (json_int_t)m->copy, "theta", (json_int_t)m->theta,
                             "change", (json_int_t)m->change, "messages", (json_int_t)m->messages, "arriving",
                             (json_int_t)m->inbox, "total", (json_int_t)m->host);
    return json_pack("{s:I,s:f,s:o,s:o,s:I,s:o,s:o}", "gpus", (json_int_t)v->box->gpus, "gpu_gib", v->box->gpu_gib,
                     "ways", ways, "host", host, "saved", (json_int_t)m->saved, "exchange", exchange_json(v->plan, v),
                     "lora", exchange_json(v->lora, v));
}
