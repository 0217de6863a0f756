/* The verbs of `atoll`. Each gets its own words (argv[0] is the verb), prints an error as one line to stderr, and
 * returns the exit code of the program (enum exit_code of common/base/status.h). */
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

int cmd_init(int argc, char **argv);
int cmd_prepare(int argc, char **argv);
int cmd_launch(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_relay(int argc, char **argv);
int cmd_probe(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_page(int argc, char **argv);
int cmd_alert(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_follow(int argc, char **argv);
int cmd_repair(int argc, char **argv);
int cmd_audit(int argc, char **argv);
int cmd_rollback(int argc, char **argv);
int cmd_exclude(int argc, char **argv);
int cmd_config(int argc, char **argv);
int cmd_codec(int argc, char **argv);
int cmd_keygen(int argc, char **argv);
int cmd_workers(int argc, char **argv);
int cmd_revoke(int argc, char **argv);

#endif
