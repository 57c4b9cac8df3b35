/* demo_recipe: recipes/demo.conf inside the program, so that `weft demo` needs no file. The
 * assembler reads it from the folder the build runs in, the root of the source. */
__asm__(".pushsection .rodata\n"
        ".global wf__run_demo_recipe\n"
        ".global wf__run_demo_recipe_end\n"
        "wf__run_demo_recipe:\n"
        ".incbin \"recipes/demo.conf\"\n"
        "wf__run_demo_recipe_end:\n"
        ".byte 0\n"
        ".popsection\n");
