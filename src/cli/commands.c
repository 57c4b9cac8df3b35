/* commands: the one table that parser, help and docs/commands.md are made from. */
#include "cli/cli.h"

#include <math.h>

const cli_option cli_global_options[] = {
    {"json", 0, CLI_FLAG, NULL, NULL, "Print the result as JSON on stdout.", 0, 0},
    {"seed", 0, CLI_INT, "N", NULL, "Seed of all that is drawn at random; replaces the recipe's.",
     0, 9e18},
    {"threads", 0, CLI_INT, "N", "0",
     "Worker threads; 0: one per core. Results do not depend on it.", 0, 256},
    {"quiet", 'q', CLI_FLAG, NULL, NULL, "No progress lines.", 0, 0},
    {"help", 'h', CLI_FLAG, NULL, NULL, "Show the help of a command.", 0, 0},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL, 0, 0},
};

/* --markdown is for tools/ and tests; it is the hidden option of the program. */
static const cli_option help_options[] = {
    {"markdown", 0, CLI_FLAG, NULL, NULL, "Print docs/commands.md.", 0, 0},
    {NULL, 0, CLI_FLAG, NULL, NULL, NULL, 0, 0},
};

const cli_command cli_commands[] = {
    {"version",
     "",
     0,
     0,
     "What this program is and what it was built with.",
     "Prints the version, the instruction set in use and the optional parts of this build.",
     NULL,
     {{"weft version", "version and build"}, {"weft version --json", "the same for programs"}},
     cli_version},
    {"help",
     "[COMMAND]",
     0,
     2,
     "Help on a command.",
     "Lists the commands, or shows one command's options and examples.",
     help_options,
     {{"weft help", "all commands"}, {"weft help zoo train", "one of them"}},
     cli_help},
    {NULL, NULL, 0, 0, NULL, NULL, NULL, {{NULL, NULL}}, NULL},
};
