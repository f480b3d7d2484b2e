// SPDX-License-Identifier: Apache-2.0
#include "cli/command.hpp"

namespace shardwire::cli {
namespace {

constexpr Example plan_examples[] = {
    {"shardwire plan case.json --totals", "the bytes that cross between ranks"},
    {"shardwire plan case.json --rank 3 --json", "the pieces of target rank 3"},
    {"shardwire plan case.json --relabel", "the process in which each target rank should run"},
};
constexpr Example run_examples[] = {
    {"shardwire run case.json", "a process for each rank, on this host"},
    {"shardwire run case.json --transport tcp --rate 500M", "over TCP, at most 500 MiB/s into each rank"},
    {"shardwire run case.json --disjoint --fault kill:1@50", "source rank 1 dies when half of the bytes have arrived"},
    {"srun -n 8 shardwire run case.json", "the 8 tasks of a Slurm step are the ranks"},
};
constexpr Example drill_examples[] = {
    {"shardwire drill case.json --seeds 0:100", "100 runs, each with its own faults"},
};
constexpr Example perf_examples[] = {
    {"shardwire perf case.json", "the case against plain copies of as many bytes"},
    {"shardwire perf --runs 4K,64K,1M --json", "each method at three lengths of runs, as rows of JSON"},
    {"shardwire perf --calibrate costs.json", "costs of this machine, for SHARDWIRE_CALIBRATION"},
};
constexpr Example doctor_examples[] = {
    {"shardwire doctor", "what works on this host, and why the rest does not"},
    {"shardwire doctor case.json", "the path between each pair of ranks, moving nothing"},
    {"shardwire doctor case.json --measure", "measured beside expected speed of each pair of ranks"},
    {"shardwire doctor case.json --expect floor=20,transport=ucx",
     "before a job: fails if a path is slower, or over tcp"},
};
constexpr Example case_examples[] = {
    {"shardwire case check case.json", "what the file means"},
    {"shardwire case --schema > schema.json", "the JSON Schema of case files"},
};
constexpr Example keep_examples[] = {
    {"shardwire keep --job pretrain --budget 64G", "holds at most 64 GiB until it is told to end"},
    {"shardwire keep --job pretrain --status", "what the keeper of this host holds"},
};
constexpr Example key_examples[] = {
    {"shardwire key job.key", "a key for SHARDWIRE_JOB_KEY_FILE of all members"},
};
constexpr Example metrics_examples[] = {
    {"shardwire metrics /run/shardwire", "the metrics of all members that wrote there"},
    {"shardwire metrics /run/shardwire --max-age 60", "those of members that live"},
};
constexpr Example trace_examples[] = {
    {"shardwire trace merge trace-*.json --output all.json", "one trace of all members, for https://ui.perfetto.dev"},
};
constexpr Example completion_examples[] = {
    {"source <(shardwire completion bash)", "in ~/.bashrc"},
    {"shardwire completion zsh >~/.zfunc/_shardwire", "in a folder of fpath, before compinit"},
    {"shardwire completion fish >~/.config/fish/completions/shardwire.fish", "from the next fish on"},
};

}  // namespace

std::span<const Command> commands() {
  static constexpr Command table[] = {
      {"plan", "Show the transfers between ranks, without moving anything", plan_examples, declare_plan},
      {"run", "Move the state of a case between real processes and check every element", run_examples, declare_run},
      {"drill", "Run a case many times with faults of its processes, and judge every outcome", drill_examples,
       declare_drill},
      {"perf", "Measure restores against their bounds, in the same run", perf_examples, declare_perf},
      {"doctor", "Show the transports that work here, or the path that the bytes of a case would take", doctor_examples,
       declare_doctor},
      {"case", "Check a case file, write one of a model, or print the JSON Schema of case files", case_examples,
       declare_case},
      {"keep", "Hold the state of a job on this host beyond the end of its trainers", keep_examples, declare_keep},
      {"key", "Make a job key in a new file", key_examples, declare_key},
      {"metrics", "Print the metrics that the members on this host have written, as one text for Prometheus",
       metrics_examples, declare_metrics},
      {"trace", "Join the traces that the members of a job have written", trace_examples, declare_trace},
      {"completion", "Print a script that completes commands, options and files in a shell", completion_examples,
       declare_completion},
  };
  return table;
}

}  // namespace shardwire::cli
