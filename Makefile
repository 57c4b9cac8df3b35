# weft: `make demo` and `make test` do everything; `make help` lists the rest.
#
# How it works. Sources are found by folder. A module is src/MODULE:
#   src/MODULE/*.c        compiled once
#   src/MODULE/cpu/*.c    compiled once per variant (src/base/variant.h): instruction set, type
#   src/MODULE/cuda/      *.cu with nvcc; without nvcc *_absent.c takes their place
#   src/MODULE/curl/      *_curl.c with libcurl; without it *_absent.c
#   src/MODULE/mpi/       *_mpi.c with MPI's compiler mpicc; without it *_absent.c
#   src/MODULE/nccl/      *_nccl.cu with nvcc and nccl.h; without them *_absent.c
# The rules of the tests are in tests/tests.mk.
# Objects and programs go to $(BUILD), in folders named as those of the sources. Settings:
#   V=1                   show whole commands, not "CC file"
#   BUILD=DIR SAN=LIST    side builds:  make BUILD=build/asan SAN=address,undefined test
#   NVCC= CURL= CCACHE=   leave CUDA, downloads, the compiler cache out
#   MPI= MPI=/opt/x/mpicc leave MPI out; that one
#   NCCL= NCCL=/opt/nccl  leave NCCL out, which needs CUDA; that one
#   CUDA_ARCH=90a         that card alone; 80/90 makes code of sm_80 for a later card

BUILD ?= build
PREFIX ?= /usr/local
PYTHON ?= /usr/bin/python3
VERSION := $(shell sed -n 's/^\#define WF_VERSION "\(.*\)"/\1/p' include/weft/base.h)

# All cores unless -j says otherwise; not for several goals, as in `make clean all`.
given := $(filter -j% j%,$(MAKEFLAGS) $(shell echo "$$MAKEFLAGS"))
ifeq ($(MAKELEVEL:0=)$(word 2,$(MAKECMDGOALS))$(given),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif

# Begins a recipe line: prints "CC file" in place of the command; make -s prints neither.
ifneq ($(V),1)
silent := $(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS))))
quiet = @$(if $(silent),,printf '  %-5s %s\n' $(1) $(2);)
endif

# --- compilers and flags ------------------------------------------------------------------------
CC ?= gcc
CCACHE ?= $(if $(findstring ccache,$(CC) $(CXX)),,$(shell command -v ccache 2>/dev/null))
OPT ?= -O2
WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wundef \
        -Wvla -Wno-psabi
CFLAGS += -std=gnu11 $(OPT) -g $(WARN) $(WERROR) -fPIC -fvisibility=hidden -ffp-contract=off \
          -pthread
CPPFLAGS += -D_GNU_SOURCE -Iinclude -Isrc
LDLIBS += -ljansson -lz -lxxhash -lm -pthread
# Under sanitizers -O3 would take four times as long to compile.
KERNEL_FLAGS := $(if $(SAN),$(OPT),-O3) -ffp-contract=fast -fno-math-errno -fno-trapping-math
ifneq ($(SAN),)
CFLAGS += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
LDFLAGS += -fsanitize=$(SAN)
else
NVCC ?= $(shell command -v nvcc 2>/dev/null)
endif
CUDA_ARCH ?= 80 90a
gencode = -gencode arch=compute_$(word 1,$(subst /, ,$(1))),code=sm_$(lastword $(subst /, ,$(1)))
NVCC_FLAGS := -std=c++17 -O3 -lineinfo $(foreach a,$(CUDA_ARCH),$(call gencode,$(a))) \
              -Xcompiler -fPIC,-Wall,-fvisibility=hidden

VARIANTS := base_f32 base_f64
ifeq ($(shell uname -m),x86_64)
VARIANTS += avx512_f32 avx2_f32
endif
flags_avx512_f32 := -DWF_REAL=float -DWF_LANES=16 -march=x86-64-v4 -mprefer-vector-width=512
flags_avx2_f32 := -DWF_REAL=float -DWF_LANES=8 -march=x86-64-v3
flags_base_f32 := -DWF_REAL=float -DWF_LANES=4
flags_base_f64 := -DWF_REAL=double -DWF_LANES=2 -DWF_REAL_IS_DOUBLE

comma := ,
again := $(MAKE) --no-print-directory

# --- sources and objects ------------------------------------------------------------------------
MODULES := base tensor nn graph data zoo align models flow generators eval report run
# objects PATTERN...: of the .c files that match src/MODULE/PATTERN in any module
objects = $(patsubst %.c,$(BUILD)/%.o,$(wildcard $(foreach p,$(1),$(MODULES:%=src/%/$(p)))))
# cuda_sources MODULE...: the .cu files of cuda/ and of the folders in it
cuda_sources = $(wildcard $(1:%=src/%/cuda/*.cu) $(1:%=src/%/cuda/*/*.cu))

CPU_OBJ := $(call objects,*.c)
CPU_OBJ += $(foreach v,$(VARIANTS),$(patsubst %.o,%.$(v).o,$(call objects,cpu/*.c)))
CURL ?= $(shell pkg-config --exists libcurl 2>/dev/null && echo yes)
ifneq ($(CURL),)
CPU_OBJ += $(call objects,curl/*_curl.c)
CPPFLAGS += $(shell pkg-config --cflags libcurl)
LDLIBS += $(shell pkg-config --libs libcurl)
else
CPU_OBJ += $(call objects,curl/*_absent.c)
endif
# What mpicc adds to a compiler's command line. MPICH and Open MPI both know -show.
MPI ?= $(shell command -v mpicc 2>/dev/null)
ifneq ($(MPI),)
mpi_flags := $(shell $(MPI) -show 2>/dev/null)
CPU_OBJ += $(call objects,mpi/*_mpi.c)
$(BUILD)/src/base/mpi/%_mpi.o: CPPFLAGS += $(patsubst -I%,-isystem %,$(filter -I% -D%,$(mpi_flags)))
LDLIBS += $(filter -L% -l% -Wl%,$(mpi_flags))
else
CPU_OBJ += $(call objects,mpi/*_absent.c)
endif
ABSENT_OBJ := $(call objects,cuda/*_absent.c nccl/*_absent.c)
ifneq ($(NVCC),)
CUDA_OBJ := $(patsubst %.cu,$(BUILD)/%.cu.o,$(call cuda_sources,$(MODULES)))
CUDA_LIBS := -L$(dir $(NVCC))../lib64 -lcudart_static -ldl -lrt -lstdc++
# The folder that holds include/nccl.h: beside nvcc, or the system's.
NCCL ?= $(patsubst %/include/nccl.h,%,$(firstword $(wildcard $(dir $(NVCC))../include/nccl.h \
            /usr/include/nccl.h)))
ifneq ($(NCCL),)
nccl_libs := $(wildcard $(NCCL)/lib $(NCCL)/lib64 $(NCCL)/lib/x86_64-linux-gnu)
CUDA_OBJ += $(patsubst %.cu,$(BUILD)/%.cu.o,$(wildcard src/base/nccl/*_nccl.cu))
CUDA_LIBS += $(patsubst %,-L%,$(nccl_libs))
CUDA_LIBS += $(patsubst %,-Wl$(comma)-rpath$(comma)%,$(nccl_libs)) -lnccl
$(BUILD)/src/base/nccl/%.cu.o: CPPFLAGS += -isystem $(NCCL)/include
else
CUDA_OBJ += $(call objects,nccl/*_absent.c)
endif
else
CUDA_OBJ := $(ABSENT_OBJ)
endif
LIB_OBJ := $(CPU_OBJ) $(CUDA_OBJ)
LIBS = $(LDLIBS) $(CUDA_LIBS)
CLI_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard src/cli/*.c))

all: $(BUILD)/weft $(BUILD)/libweft.a $(BUILD)/libweft.so ## the program and the library

help: ## this list
	@sed -n 's/^\([a-z_.-]*\):.*## /make \1\t/p' Makefile tests/tests.mk | expand -t 30

# --- packages: each target asks for what it cannot do without, optional ones are never installed --
need-lib:
	@CC="$(CC)" tools/need.sh gcc zlib1g-dev libjansson-dev libxxhash-dev
need-test: need-lib
	@CC="$(CC)" tools/need.sh libcmocka-dev python3 g++ openmpi-bin libopenmpi-dev
need-python:
	@tools/need.sh python3
need-oracle: need-lib
	@tools/need.sh python3-torch python3-scipy python3-sklearn
# With the reference BLAS PyTorch is slow, and being faster than that says nothing.
need-bench: need-oracle
	@tools/need.sh libopenblas0-pthread
need-check:
	@tools/need.sh clang clang-format
.PHONY: FORCE all help demo docs bench bench-ranks install clean format compile_commands.json \
        need-lib need-test need-python need-oracle need-bench need-check

# --- the library and the program ----------------------------------------------------------------
$(LIB_OBJ) $(ABSENT_OBJ) $(CLI_OBJ): | need-lib

$(BUILD)/src/%.o: src/%.c
	@mkdir -p $(@D)
	$(call quiet,CC,$<)$(CCACHE) $(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

define variant_rule
$(BUILD)/src/%.$(1).o: src/%.c
	@mkdir -p $$(@D)
	$$(call quiet,CC,'$$< $(1)')$$(CCACHE) $$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(KERNEL_FLAGS) \
	    -DWF_VARIANT=$(1) $$(flags_$(1)) -MMD -MP -c $$< -o $$@
endef
$(foreach v,$(VARIANTS),$(eval $(call variant_rule,$(v))))

# Draws and solver states have the same bits as on the CPU, which does not contract either.
$(BUILD)/src/flow/cuda/%.cu.o $(BUILD)/src/generators/cuda/%.cu.o: NVCC_FLAGS += -fmad=false

# ccache must go by the .d file: what nvcc preprocesses lacks the code under #if __CUDA_ARCH__, and
# a change there would bring back the old object.
$(BUILD)/src/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(call quiet,NVCC,$<)$(if $(CCACHE),CCACHE_DEPEND=1) $(CCACHE) $(NVCC) $(CPPFLAGS) $(NVCC_FLAGS) \
	    -MMD -MF $(@:.o=.d) -c $< -o $@

$(BUILD)/src/run/demo_recipe.o: recipes/demo.conf # which the assembler takes in

# Changes when NVCC, CURL or MPI do: objects that are there already would not make the library
# again.
$(BUILD)/parts.txt $(BUILD)/wheel/parts.txt: FORCE
	@mkdir -p $(@D)
	@echo '$(LIB_OBJ) $(LIBS)' | cmp -s - $@ || echo '$(LIB_OBJ) $(LIBS)' >$@
FORCE:

$(BUILD)/libweft.a: $(LIB_OBJ) $(BUILD)/parts.txt
	@rm -f $@
	$(call quiet,AR,$@)$(AR) rcs $@ $(LIB_OBJ)

# wheel/: that of the Python package, which setup.py makes without MPI.
$(BUILD)/libweft.so $(BUILD)/wheel/libweft.so: %/libweft.so: $(LIB_OBJ) %/parts.txt
	$(call quiet,LD,$@)$(CC) -shared -Wl,-soname,libweft.so.0 $(LDFLAGS) $(LIB_OBJ) $(LIBS) -o $@
	@ln -sf libweft.so $@.0 # the name that programs look for

$(BUILD)/weft: $(CLI_OBJ) $(BUILD)/libweft.a
	$(call quiet,LD,$@)$(CC) $(LDFLAGS) $^ $(LIBS) -o $@

# The program without CUDA: what a demo needs, minutes before nvcc is done.
$(BUILD)/weft-cpu: $(CLI_OBJ) $(CPU_OBJ) $(ABSENT_OBJ)
	$(call quiet,LD,$@)$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@

format: ## run clang-format on all sources
	@clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')

compile_commands.json: ## how each file is compiled, for editors
	+@$(again) -Bn V=1 NVCC= CCACHE= all test-programs | tools/compile_commands.py $@

# --- use ----------------------------------------------------------------------------------------
demo: $(BUILD)/weft-cpu ## train, sample and judge networks in minutes; leaves runs/demo/report.html
	@$(BUILD)/weft-cpu demo

docs: ## the documentation as a site: build/site
	@tools/docs.sh

bench: $(BUILD)/weft need-bench ## speed beside PyTorch in one run
	@BUILD=$(BUILD) PYTHON=$(PYTHON) bench/run.sh

$(BUILD)/bench/ranks: bench/ranks.c $(BUILD)/libweft.a
	@mkdir -p $(@D)
	$(call quiet,CC,$<)$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@
bench-ranks: $(BUILD)/bench/ranks ## cost of the collective calls: mpirun -n 2 build/bench/ranks

install: all ## to PREFIX, /usr/local unless told
	@BUILD=$(BUILD) PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) VERSION=$(VERSION) LIBS="$(LIBS)" \
	    tools/install.sh

clean: ## remove build/
	rm -rf build

include tests/tests.mk
-include $(LIB_OBJ:.o=.d) $(ABSENT_OBJ:.o=.d) $(CLI_OBJ:.o=.d)
