/* shell: the manual page and the completions of bash, zsh and fish, from the table of commands. */
#include "cli/cli.h"
#include "run/recipe_schema.h"
#include "weft/text.h"

#include <string.h>

/* --- the manual page -------------------------------------------------------------------------- */

/* Text of troff: a hyphen is a minus sign, and no line begins with a request. */
static void man_text(FILE *file, const char *text) {
    if (*text == '.' || *text == '\'') fputs("\\&", file);
    for (; *text != '\0'; text++) {
        if (*text == '\\') fputs("\\e", file);
        else if (*text == '-') fputs("\\-", file);
        else fputc(*text, file);
    }
}

/* A tag, and what it means. */
static void man_entry(FILE *file, const char *tag, const char *text, const char *fallback) {
    fputs(".TP\n.B ", file);
    man_text(file, tag);
    fputc('\n', file);
    man_text(file, text);
    if (*fallback != '\0') {
        fputs(" [Default: ", file);
        man_text(file, fallback);
        fputc(']', file);
    }
    fputc('\n', file);
}

static void man_options(FILE *file, const cli_option *option) {
    for (; option != NULL && option->name != NULL; option++) {
        char usage[80], text[400];
        const char *fallback;
        cli_option_usage(option, usage, sizeof usage);
        cli_option_text(option, text, sizeof text, &fallback);
        man_entry(file, usage, text, fallback);
    }
}

static void man_command(FILE *file, const cli_command *command) {
    fprintf(file, ".SS weft %s %s\n", command->name, command->arguments);
    man_text(file, command->details);
    fputc('\n', file);
    man_options(file, command->options);
    fputs(".PP\nExamples:\n.PP\n.nf\n", file);
    for (int i = 0; i < 4 && command->examples[i].command != NULL; i++) {
        man_text(file, command->examples[i].command);
        fputs("\n    ", file);
        man_text(file, command->examples[i].what);
        fputc('\n', file);
    }
    fputs(".fi\n", file);
}

static void man_setting(wf_run_listing *list, const wf_setting *row, const char *value) {
    char tag[160], text[600];
    if (wf__run_listing_begins(list, row))
        fprintf(list->file, ".SS [%s]%s%s\n", row->section,
                list->kind != NULL ? " with generator = " : "",
                list->kind != NULL ? list->kind->name : "");
    snprintf(tag, sizeof tag, "%s = %.60s", row->key, value);
    wf_text meaning = wf_text_start(text, sizeof text);
    wf_text_add(&meaning, "%s", row->help);
    for (int i = 0; row->names != NULL && row->names[i] != NULL; i++)
        wf_text_add(&meaning, "%s%s", i > 0 ? ", " : ": ", row->names[i]);
    man_entry(list->file, tag, text, "");
}

void cli_help_man(FILE *file) {
    static const char *const environment[][2] = {
        {"WEFT_DATA", "Folder of data sets. Paths of [data] are looked up there."},
        {"WEFT_RECIPES", "Folder of recipes that are named without a path, before the installed."},
        {"WEFT_ISA", "base, avx2 or avx512: use no newer instructions than these."}};
    fprintf(file,
            ".TH WEFT 1 \"\" \"weft %s\"\n.SH NAME\nweft \\- learn the distribution of trained "
            "neural networks and sample new ones\n.SH SYNOPSIS\n.B weft\n.I COMMAND\n"
            "[options] [arguments]\n.SH DESCRIPTION\nResults go to standard output, progress and "
            "faults to standard error. Start with\n.BR \"weft demo\" .\n.SH OPTIONS\n"
            "Every command has these. They may stand before the command, too.\n",
            WF_VERSION);
    man_options(file, cli_global_options);
    fputs(".SH COMMANDS\n", file);
    for (const cli_command *command = cli_commands; command->name != NULL; command++)
        man_command(file, command);
    fputs(".SH RECIPES\nA recipe is a text of sections of \"key = value  # why\". Keys, defaults "
          "and meaning:\n",
          file);
    wf__run_recipe_each(man_setting, &(wf_run_listing){.file = file, .section = ""});
    fputs(".SH ENVIRONMENT\n", file);
    for (size_t i = 0; i < sizeof environment / sizeof *environment; i++)
        man_entry(file, environment[i][0], environment[i][1], "");
    fputs(".SH EXIT STATUS\n", file);
    for (int i = 0; cli_exit_codes[i][0] != NULL; i++)
        man_entry(file, cli_exit_codes[i][0], cli_exit_codes[i][1], "");
}

/* --- completions ------------------------------------------------------------------------------ */

/* Commands: "zoo" and "train" of "zoo train"; the second is "" where there is one word. */
typedef struct parts {
    char first[32], second[32];
} parts;

static parts split(const cli_command *command) {
    parts p = {"", ""};
    sscanf(command->name, "%31s %31s", p.first, p.second);
    return p;
}

/* Is it the first command that begins with this word? */
static bool begins_group(const cli_command *command) {
    parts own = split(command);
    for (const cli_command *before = cli_commands; before < command; before++)
        if (strcmp(split(before).first, own.first) == 0) return false;
    return true;
}

/* "Train a collection of independent networks." without what a shell would act on. */
static void plain(FILE *file, const char *text) {
    for (; *text != '\0'; text++) fputc(strchr("'\"`$\\[]():", *text) != NULL ? ' ' : *text, file);
}

static bool takes_recipe(const cli_command *command) {
    return strncmp(command->arguments, "RECIPE", 6) == 0;
}

/* Prints the names of installed recipes, in all three shells. */
static const char recipe_names[] = "weft help recipes | sed -n 's/^  \\([^ ]*\\) .*/\\1/p'";

static void put_names(FILE *file, const char *const *names) {
    for (int i = 0; names[i] != NULL; i++) fprintf(file, "%s%s", i > 0 ? " " : "", names[i]);
}

/* Does an option's value name a file? Completions of files are the shell's own. */
static bool is_path(const char *value) {
    return value != NULL && (strstr(value, "FILE") != NULL || strstr(value, "FOLDER") != NULL ||
                             strstr(value, "DATA") != NULL || strstr(value, "SET") != NULL);
}

static void put_key(wf_run_listing *list, const wf_setting *row, const char *value) {
    (void)value;
    fprintf(list->file, " %s.%s=", row->section, row->key);
}

static void put_keys(FILE *file) {
    wf__run_recipe_each(put_key, &(wf_run_listing){.file = file, .section = ""});
}

typedef void option_printer(FILE *file, const char *condition, const cli_option *option);

static void each_option(FILE *file, const char *condition, const cli_option *option,
                        option_printer *print) {
    for (; option != NULL && option->name != NULL; option++) print(file, condition, option);
}

/* bash: the words after an option, if it has names; else the options or the sub-commands. */

static void bash_word(FILE *file, const char *condition, const cli_option *option) {
    (void)condition;
    fprintf(file, " --%s", option->name);
    if (option->letter != 0) fprintf(file, " -%c", option->letter);
}

static void bash_values(FILE *file, const char *condition, const cli_option *option) {
    const char *const *names = cli_option_names(option);
    if (names == NULL) return;
    fprintf(file, "    \"%s --%s\"", condition, option->name);
    if (option->letter != 0) fprintf(file, "|\"%s -%c\"", condition, option->letter);
    fputs(") words='", file);
    put_names(file, names);
    fputs("' ;;\n", file);
}

static void bash(FILE *file) {
    fputs("# Completions of weft for bash: weft help --completion bash\n"
          "_weft() {\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local command='' options='' words='' recipes='' word\n"
          "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
          "        [[ $word == -* ]] || command+=\"$word \"\n"
          "    done\n"
          "    [[ $current == -* || $before == -* ]] || command=${command#help }\n"
          "    case $command in\n",
          file);
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        parts name = split(command);
        fprintf(file, "    '%s '*) command='%s'%s options='", command->name, command->name,
                takes_recipe(command) ? " recipes=yes" : "");
        each_option(file, "", command->options, bash_word);
        each_option(file, "", cli_global_options, bash_word);
        fputs("' ;;\n", file);
        bool last = command[1].name == NULL || strcmp(split(command + 1).first, name.first) != 0;
        if (name.second[0] == '\0' || !last) continue;
        fprintf(file, "    '%s '*) command='' words='", name.first);
        for (const cli_command *other = cli_commands; other->name != NULL; other++)
            if (strcmp(split(other).first, name.first) == 0)
                fprintf(file, " %s", split(other).second);
        fputs("' ;;\n", file);
    }
    fputs("    *) command='' words='", file);
    for (const cli_command *command = cli_commands; command->name != NULL; command++)
        if (begins_group(command)) fprintf(file, " %s", split(command).first);
    fputs("' options='", file);
    each_option(file, "", cli_global_options, bash_word);
    fputs("' ;;\n    esac\n    case \"$command $before\" in\n", file);
    for (const cli_command *command = cli_commands; command->name != NULL; command++)
        each_option(file, command->name, command->options, bash_values);
    each_option(file, "\"*\"", cli_global_options, bash_values);
    fputs("    *' --set')\n        compopt -o nospace 2>/dev/null\n        words='", file);
    put_keys(file);
    fprintf(file,
            "' ;;\n    *) if [[ $current == -* ]]; then words=$options\n"
            "       elif [[ -n $recipes && $before != -* ]]; then\n"
            "           compopt -o filenames 2>/dev/null\n"
            "           COMPREPLY=($(compgen -f -- \"$current\"))\n"
            "           words=$(%s)\n"
            "       fi ;;\n    esac\n"
            "    COMPREPLY+=($(compgen -W \"$words\" -- \"$current\"))\n"
            "}\n"
            "complete -o default -F _weft weft\n",
            recipe_names);
}

/* zsh: _arguments with a line for each option. */

static void zsh_option(FILE *file, const char *condition, const cli_option *option) {
    (void)condition;
    char text[400];
    const char *fallback, *const *names = cli_option_names(option);
    cli_option_text(option, text, sizeof text, &fallback);
    fputs(" \\\n            ", file);
    if (option->letter != 0)
        fprintf(file, "'(-%c --%s)'{-%c,--%s}'[", option->letter, option->name, option->letter,
                option->name);
    else fprintf(file, "'%s--%s[", option->kind == CLI_LIST ? "*" : "", option->name);
    plain(file, text);
    fputc(']', file);
    if (option->kind != CLI_FLAG) {
        fputc(':', file);
        plain(file, option->value);
        if (names != NULL) {
            fputs(":(", file);
            put_names(file, names);
            fputc(')', file);
        } else if (option->kind == CLI_LIST) fputs(":_weft_keys", file);
        else fputs(is_path(option->value) ? ":_files" : ": ", file);
    }
    fputc('\'', file);
}

static void zsh_choice(FILE *file, const char *name, const char *summary) {
    fprintf(file, " '%s:", name);
    plain(file, summary);
    fputc('\'', file);
}

static void zsh(FILE *file) {
    fputs("#compdef weft\n# Completions of weft for zsh: weft help --completion zsh\n"
          "_weft_keys() {\n    compadd -S '' --",
          file);
    put_keys(file);
    fprintf(file, "\n}\n_weft_recipes() {\n    compadd -- ${(f)\"$(%s)\"}\n    _files\n}\n",
            recipe_names);
    fputs("_weft() {\n"
          "    local command=\"${(j: :)${(@)words[2,CURRENT-1]:#-*}} \"\n"
          "    local -a names\n"
          "    [[ $words[CURRENT] == -* || $words[CURRENT-1] == -* ]] || command=${command#help }\n"
          "    case $command in\n",
          file);
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        parts name = split(command);
        fprintf(file, "    ('%s '*)\n        _arguments -S", command->name);
        each_option(file, "", command->options, zsh_option);
        each_option(file, "", cli_global_options, zsh_option);
        fprintf(file, " \\\n            '*: :%s' ;;\n",
                takes_recipe(command) ? "_weft_recipes" : "_files");
        bool last = command[1].name == NULL || strcmp(split(command + 1).first, name.first) != 0;
        if (name.second[0] == '\0' || !last) continue;
        fprintf(file, "    ('%s '*)\n        names=(", name.first);
        for (const cli_command *other = cli_commands; other->name != NULL; other++)
            if (strcmp(split(other).first, name.first) == 0)
                zsh_choice(file, split(other).second, other->summary);
        fputs(")\n        _describe command names ;;\n", file);
    }
    fputs("    (*)\n        names=(", file);
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        parts name = split(command);
        if (begins_group(command))
            zsh_choice(file, name.first, name.second[0] == '\0' ? command->summary : "");
    }
    fputs(")\n        _describe command names ;;\n    esac\n}\n_weft \"$@\"\n", file);
}

/* fish: a line for each option, under the condition that its command was typed. */

static void fish_option(FILE *file, const char *condition, const cli_option *option) {
    char text[400];
    const char *fallback, *const *names = cli_option_names(option);
    cli_option_text(option, text, sizeof text, &fallback);
    fputs("complete -c weft", file);
    if (*condition != '\0') fprintf(file, " -n '__weft_is %s'", condition);
    fprintf(file, " -l %s", option->name);
    if (option->letter != 0) fprintf(file, " -s %c", option->letter);
    if (names != NULL || option->kind == CLI_LIST) {
        fputs(" -x -a '", file);
        if (names != NULL) put_names(file, names);
        else put_keys(file);
        fputc('\'', file);
    } else if (option->kind != CLI_FLAG) fputs(is_path(option->value) ? " -r -F" : " -x", file);
    fputs(" -d '", file);
    plain(file, text);
    fputs("'\n", file);
}

static void fish_choice(FILE *file, const char *condition, const char *name, const char *summary) {
    fprintf(file, "complete -c weft -f -n '%s' -a %s -d '", condition, name);
    plain(file, summary);
    fputs("'\n", file);
}

static void fish(FILE *file) {
    fprintf(file, "function __weft_recipes\n    %s\nend\n", recipe_names);
    fputs("# Completions of weft for fish: weft help --completion fish\n"
          "function __weft_words\n"
          "    string join ' ' (string match -v -- '-*' (commandline -opc)[2..-1])\n"
          "end\n"
          "function __weft_is\n"
          "    set -l words (__weft_words)\n"
          "    string match -q -- \"$argv *\" \"$words \"\n"
          "end\n"
          "function __weft_after\n"
          "    set -l words (__weft_words | string replace -r '^help( |$)' '')\n"
          "    test \"$words\" = \"$argv\"\n"
          "end\n",
          file);
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        parts name = split(command);
        bool group = name.second[0] != '\0';
        char condition[64];
        if (begins_group(command))
            fish_choice(file, "__weft_after", name.first, group ? "" : command->summary);
        snprintf(condition, sizeof condition, "__weft_after %s", name.first);
        if (group) fish_choice(file, condition, name.second, command->summary);
        each_option(file, command->name, command->options, fish_option);
        if (takes_recipe(command))
            fprintf(file, "complete -c weft -n '__weft_is %s' -a '(__weft_recipes)'\n",
                    command->name);
    }
    each_option(file, "", cli_global_options, fish_option);
}

void cli_help_completion(FILE *file, const char *shell) {
    if (strcmp(shell, "bash") == 0) bash(file);
    else if (strcmp(shell, "zsh") == 0) zsh(file);
    else fish(file);
}
