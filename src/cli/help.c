/* help: everything the tables say, for a terminal and as Markdown (docs/commands.md). */
#include "cli/cli.h"
#include "weft/text.h"

#include <ctype.h>
#include <string.h>

enum { width = 96 };

const char *const cli_exit_codes[][2] = {
    {"0", "done"},
    {"1", "failed"},
    {"2", "wrong usage"},
    {"3", "bad input file"},
    {"4", "out of memory or disk"},
    {"5", "another process is making the output"},
    {"130, 138, 143",
     "stopped by a signal: what was done is saved, and the same command goes on from there"},
    {"141", "what read the output has gone"},
    {NULL, NULL}};

static void exit_codes(char *out, size_t size) {
    wf_text text = wf_text_start(out, size);
    for (int i = 0; cli_exit_codes[i][0] != NULL; i++)
        wf_text_add(&text, "%s%s %s", i > 0 ? ", " : "Exit codes: ", cli_exit_codes[i][0],
                    cli_exit_codes[i][1]);
    wf_text_add(&text, ".");
}

/* Prints `text` after `indent` spaces, broken between words; the first line has begun at column
 * `column`. */
static void print_wrapped(FILE *file, const char *text, int indent, int column) {
    while (*text != '\0') {
        text += strspn(text, " ");
        size_t word = strcspn(text, " ");
        if (column > indent && column + 1 + (int)word > width) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            fputc(' ', file);
            column++;
        }
        fwrite(text, 1, word, file);
        column += (int)word;
        text += word;
    }
    fputc('\n', file);
}

void cli_option_usage(const cli_option *option, char *out, size_t size) {
    char letter[8] = "";
    if (option->letter != 0) snprintf(letter, sizeof letter, "-%c, ", option->letter);
    snprintf(out, size, "%s--%s%s%s", letter, option->name, option->value != NULL ? " " : "",
             option->value != NULL ? option->value : "");
}

/* A setting's line is made a sentence: "Of the matching in WCS."; then the names of a choice. */
void cli_option_text(const cli_option *option, char *out, size_t size, const char **fallback) {
    *fallback = option->fallback != NULL ? option->fallback : "";
    wf_text text = wf_text_start(out, size);
    if (option->kind == CLI_SETTING) {
        const wf_setting *row = cli_option_row(option);
        bool more = option->help != NULL;
        if (!more && option->fallback == NULL) *fallback = row->text;
        wf_text_add(&text, "%c%s%s%s.", toupper((unsigned char)row->help[0]), row->help + 1,
                    more ? ", " : "", more ? option->help : "");
    } else wf_text_add(&text, "%s", option->help);
    const char *const *names = cli_option_names(option);
    for (int i = 0; names != NULL && names[i] != NULL; i++)
        wf_text_add(&text, "%s%s", i > 0 ? ", " : " One of ", names[i]);
    if (names != NULL) wf_text_add(&text, ".");
}

static void print_options(FILE *file, const cli_option *option) {
    for (; option != NULL && option->name != NULL; option++) {
        char usage[80], text[512];
        const char *fallback;
        cli_option_usage(option, usage, sizeof usage);
        cli_option_text(option, text, 400, &fallback);
        if (*fallback != '\0') {
            size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, " [Default: %s]", fallback);
        }
        int column = fprintf(file, "  %-23s ", usage);
        if (column > 26) fprintf(file, "\n%*s", 26, "");
        print_wrapped(file, text, 26, 26);
    }
}

void cli_help_command(FILE *file, const cli_command *command) {
    fprintf(file, "usage: weft %s%s%s%s\n\n", command->name,
            command->arguments[0] != '\0' ? " " : "", command->arguments,
            command->options != NULL ? " [options]" : "");
    print_wrapped(file, command->details, 0, 0);
    if (command->options != NULL) {
        fputs("\noptions:\n", file);
        print_options(file, command->options);
    }
    fputs("\noptions of every command:\n", file);
    print_options(file, cli_global_options);
    fputs("\nexamples:\n", file);
    for (int i = 0; i < 4 && command->examples[i].command != NULL; i++)
        fprintf(file, "  %s\n      %s\n", command->examples[i].command, command->examples[i].what);
}

static bool in_group(const cli_command *command, const char *group) {
    size_t length = strlen(group);
    return strncmp(command->name, group, length) == 0 && command->name[length] == ' ';
}

static void print_summaries(FILE *file, const char *group) {
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        if (group != NULL && !in_group(command, group)) continue;
        char usage[80];
        snprintf(usage, sizeof usage, "%s %s", command->name, command->arguments);
        fprintf(file, "  %-28s ", usage);
        print_wrapped(file, command->summary, 31, 31);
    }
}

bool cli_help_group(FILE *file, const char *group) {
    bool found = false;
    for (const cli_command *command = cli_commands; command->name != NULL; command++)
        found = found || in_group(command, group);
    if (!found) return false;
    fprintf(file, "usage: weft %s COMMAND ...\n\n", group);
    print_summaries(file, group);
    fprintf(file, "\n\"weft help %s COMMAND\" says more.\n", group);
    return true;
}

void cli_help_program(FILE *file) {
    fputs("weft learns the distribution of trained neural networks and samples new ones.\n\n"
          "usage: weft COMMAND ...\n\n",
          file);
    print_summaries(file, NULL);
    fputs("\noptions of every command:\n", file);
    print_options(file, cli_global_options);
    fputs("\n\"weft help COMMAND\" has options and examples. Start with: weft demo\n", file);
    char codes[400];
    exit_codes(codes, sizeof codes);
    print_wrapped(file, codes, 0, 0);
}

static void markdown_escaped(FILE *file, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '|' || *text == '<' || *text == '*') fputc('\\', file);
        fputc(*text, file);
    }
}

static void markdown_options(FILE *file, const cli_option *option) {
    fputs("| option | meaning | default |\n| --- | --- | --- |\n", file);
    for (; option != NULL && option->name != NULL; option++) {
        char usage[80], text[400];
        const char *fallback;
        cli_option_usage(option, usage, sizeof usage);
        cli_option_text(option, text, sizeof text, &fallback);
        fprintf(file, "| `%s` | ", usage);
        markdown_escaped(file, text);
        fprintf(file, " | %s |\n", fallback);
    }
    fputc('\n', file);
}

/* Tells tests/doc_blocks.py, which runs the examples, of one that it cannot run. */
static void markdown_not_run(FILE *file, const char *example) {
    static const char *const reasons[][2] = {
        {"weft data fetch", "needs the network"},
        {"weft bench --device cuda", "needs a GPU"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strncmp(example, reasons[i][0], strlen(reasons[i][0])) == 0)
            fprintf(file, "<!-- not run, %s: %s -->\n", example, reasons[i][1]);
}

static void markdown_command(FILE *file, const cli_command *command) {
    fprintf(file, "## weft %s\n\n", command->name);
    fprintf(file, "```text\nweft %s%s%s%s\n```\n\n", command->name,
            command->arguments[0] != '\0' ? " " : "", command->arguments,
            command->options != NULL ? " [options]" : "");
    markdown_escaped(file, command->details);
    fputs("\n\n", file);
    if (command->options != NULL) markdown_options(file, command->options);
    fputs("Examples:\n\n", file);
    for (int i = 0; i < 4 && command->examples[i].command != NULL; i++)
        markdown_not_run(file, command->examples[i].command);
    fputs("```sh\n", file);
    for (int i = 0; i < 4 && command->examples[i].command != NULL; i++)
        fprintf(file, "%-64s # %s\n", command->examples[i].command, command->examples[i].what);
    fputs("```\n\n", file);
}

void cli_help_markdown(FILE *file) {
    char codes[400];
    exit_codes(codes, sizeof codes);
    fprintf(file,
            "# Commands\n\nWritten by `weft help --markdown` from the tables the program itself "
            "uses; do not edit by hand. `weft help --man` prints the same as a manual page.\n"
            "<!-- files: tests/doc_files.sh; each line by itself -->\n\n"
            "Results go to stdout, progress and faults to stderr. %s\n\n",
            codes);
    fputs("Options of every command, which may stand before its name, too:\n\n", file);
    markdown_options(file, cli_global_options);
    for (const cli_command *command = cli_commands; command->name != NULL; command++)
        markdown_command(file, command);
}
