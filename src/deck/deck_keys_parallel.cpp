#include "deck_tables.hpp"

namespace choir::deck {

void add_parallel_keys(Table& table) {
  using Part = ParallelSection;
  auto parallel = table.section("parallel", &Deck::parallel);
  parallel
      .add("tensor", &Part::tensor, "ranks",
           "Ranks that share each layer; heads, feed-forward width and vocabulary are divided "
           "among them.")
      .at_least(1)
      .at_most(kMostTensorRanks);
  parallel
      .add("pipeline", &Part::pipeline, "ranks",
           "Pipeline stages that share the layers, balanced by FLOPs including the embedding and "
           "the head.")
      .at_least(1);
  parallel
      .add("context", &Part::context, "ranks",
           "Ranks that share each sequence; positions are divided among them. See "
           "parallel.context_mode for attention.")
      .at_least(1);
  parallel
      .add("context_mode", &Part::context_mode, "",
           "How attention works on sequences that are divided among context ranks. ulysses: an "
           "all-to-all exchanges positions for heads, so that parallel.context must divide the "
           "query heads of a tensor rank. gather: every rank gathers the keys and values of all "
           "positions. ring: keys and values circulate among the ranks, and a rank never holds "
           "more than those of two ranks (layers with a window gather). ring-ulysses: groups of "
           "neighbouring ranks, the largest that divide both ranks and heads, use ulysses, and "
           "keys and values circulate among the groups. The last three accept any number of ranks "
           "and assign positions in a zig-zag that balances causal work. auto: ulysses where the "
           "heads can be divided, else gather. Ignored on one rank.")
      .one_of({"auto", "ulysses", "gather", "ring", "ring-ulysses"});
  parallel
      .add("data", &Part::data, "ranks",
           "Size of the data-parallel axis. auto: all remaining ranks. A number must match the "
           "ranks of the job.")
      .or_word("auto")
      .at_least(0);
  parallel.add("sequence", &Part::sequence, "",
               "Sequence parallelism: in norms, dropout and residuals each tensor rank holds only "
               "its share of the tokens.");
  parallel
      .add("zero", &Part::zero, "stage",
           "Training state that is sharded over the data-parallel ranks. 0: nothing. 1: moments, "
           "and master weights where a compute copy exists. 2: also gradients, which are reduced "
           "after every micro-batch (so their traffic grows with grad_accum). 3: also parameters, "
           "which are gathered around their use.")
      .at_least(0)
      .at_most(3);
  parallel
      .add("zero_group", &Part::zero_group, "ranks",
           "Consecutive data-parallel ranks (with their context ranks) that share one copy of the "
           "state sharded by parallel.zero; between such groups gradients are all-reduced.")
      .checked("all, node or a number that divides the data-parallel ranks",
               [](const KeyValue& value) -> std::string {
                 const auto& group = std::get<std::string>(value);
                 const bool number = !group.empty() && group.size() < 7 && group.front() != '0' &&
                                     group.find_first_not_of("0123456789") == std::string::npos;
                 if (number || group == "all" || group == "node") return {};
                 return "expected \"all\", \"node\" or a number of ranks, as \"4\"";
               });
  parallel
      .add("zero_prefetch", &Part::zero_prefetch, "buckets",
           "Buckets (blocks) that are gathered ahead of their use with parallel.zero = 3. Each "
           "needs memory for one whole block.")
      .at_least(0)
      .at_most(64);
  parallel.add("schedule", &Part::schedule, "", "Pipeline schedule. Ignored on one stage.")
      .one_of({"1f1b", "gpipe", "interleaved", "zb-h1"});
  parallel
      .add("virtual_stages", &Part::virtual_stages, "",
           "Model pieces on each stage, for parallel.schedule = interleaved.")
      .at_least(1);
  parallel
      .add(
          "offload", &Part::offload, "",
          "State that is kept outside of device memory and streamed through it. optimizer: "
          "moments, and master weights where a compute copy exists, in host memory. all: also "
          "parameters (needs parallel.zero = 3). file: the same as optimizer, but in a file on a "
          "local disk. On CPU, optimizer and all are ignored because device memory is host memory.")
      .one_of({"none", "optimizer", "all", "file"});
  parallel.add(
      "offload_dir", &Part::offload_dir, "",
      "Directory on a local disk of the node, for parallel.offload = file. Each rank reserves its "
      "space at the start and leaves no file behind. Empty: TMPDIR, or /tmp.");
  parallel.add("order", &Part::order, "", "Order of the axes, the fastest varying first.")
      .checked("a permutation of tp-cp-dp-pp", [](const KeyValue& value) -> std::string {
        const auto& order = std::get<std::string>(value);
        const std::string padded = "-" + order + "-";
        for (const char* axis : {"-tp-", "-cp-", "-dp-", "-pp-"})
          if (padded.find(axis) == std::string::npos || order.size() != 11)
            return "expected tp, cp, dp and pp once each, joined by '-'";
        return {};
      });
  parallel
      .add("transport", &Part::transport, "",
           "Transport of collectives. In host memory: node uses shared memory (all ranks on one "
           "node), and auto uses it where possible. On GPUs: nccl, or staged through host memory "
           "(by mpi, by node, or by the faster of the two); auto uses nccl where possible.")
      .one_of({"auto", "mpi", "node", "nccl", "staged"});
  parallel.add("share_device", &Part::share_device, "",
               "Allow several ranks to work on one GPU. Their collectives are then staged through "
               "host memory.");
  parallel
      .add("timeout", &Part::timeout, "seconds",
           "Time limit of a collective. One that takes longer ends the run with exit code 5, and "
           "the message names the ranks.")
      .in_seconds()
      .above(0);
}

}  // namespace choir::deck
