#include "deck_tables.hpp"

namespace choir::deck {

void add_parallel_keys(Table& table) {
  using Part = ParallelSection;
  auto parallel = table.section("parallel", &Deck::parallel);
  parallel
      .add("tensor", &Part::tensor, "ranks",
           "Ranks that share each layer: heads, feed-forward width and vocabulary are divided.")
      .at_least(1)
      .at_most(kMostTensorRanks);
  parallel
      .add("pipeline", &Part::pipeline, "ranks",
           "Stages that share the layers; embedding and head count as what they cost.")
      .at_least(1);
  parallel
      .add("context", &Part::context, "ranks",
           "Ranks that share each sequence: positions are divided; for attention see "
           "parallel.context_mode.")
      .at_least(1);
  parallel
      .add(
          "context_mode", &Part::context_mode, "",
          "How attention sees sequences that context ranks share. ulysses: heads are exchanged for "
          "positions, so that parallel.context divides the query heads of a tensor rank; gather: "
          "every rank gathers the keys and values of all positions; ring: they go round the ranks, "
          "which never hold more than those of two (layers with a window gather); ring-ulysses: "
          "groups of neighbouring ranks, the largest that divide both ranks and heads, exchange "
          "heads, and keys and values go round the groups. These three are for any number of "
          "ranks, "
          "with positions dealt out in a zig-zag that levels causal work. auto: ulysses where "
          "heads "
          "can be divided, else gather. Ignored on one rank.")
      .one_of({"auto", "ulysses", "gather", "ring", "ring-ulysses"});
  parallel
      .add("data", &Part::data, "ranks",
           "Data-parallel size. auto: all ranks. A number must equal the ranks the job has.")
      .or_word("auto")
      .at_least(0);
  parallel.add("sequence", &Part::sequence, "",
               "Sequence parallelism: norms, dropout and residuals hold a share of the tokens on "
               "each of the tensor ranks.");
  parallel
      .add("zero", &Part::zero, "stage",
           "What of the training state the data-parallel ranks share, each with its slice. 0: "
           "nothing; 1: moments, and masters beside a compute copy; 2: and gradients, which are "
           "reduced after every micro-batch (so grad_accum multiplies those bytes); 3: and "
           "parameters, which are gathered around their use.")
      .at_least(0)
      .at_most(3);
  parallel
      .add("zero_group", &Part::zero_group, "ranks",
           "How many consecutive data-parallel ranks (with their context ranks) share one copy of "
           "what "
           "parallel.zero spreads; between such groups gradients are all-reduced.")
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
           "parallel.zero = 3: how many buckets (blocks) are gathered ahead of their use; each "
           "needs room for one whole block.")
      .at_least(0)
      .at_most(64);
  parallel.add("schedule", &Part::schedule, "", "Pipeline schedule; ignored on one stage.")
      .one_of({"1f1b", "gpipe", "interleaved", "zb-h1"});
  parallel
      .add("virtual_stages", &Part::virtual_stages, "",
           "Pieces of the model on each stage, for parallel.schedule = interleaved.")
      .at_least(1);
  parallel
      .add("offload", &Part::offload, "",
           "What is kept out of device memory and streamed through it. optimizer: moments, and "
           "masters beside a compute copy, in host memory; all: parameters, too (parallel.zero = "
           "3); file: as optimizer, but in a file on a local disk. The first two are ignored "
           "on the cpu, whose memory is host memory.")
      .one_of({"none", "optimizer", "all", "file"});
  parallel.add("offload_dir", &Part::offload_dir, "",
               "parallel.offload = file: a directory on a disk of the node; each rank takes its "
               "space there at the start and leaves nothing behind. Empty: TMPDIR, or /tmp.");
  parallel.add("order", &Part::order, "", "Axes from the fastest varying rank on.")
      .checked("a permutation of tp-cp-dp-pp", [](const KeyValue& value) -> std::string {
        const auto& order = std::get<std::string>(value);
        const std::string padded = "-" + order + "-";
        for (const char* axis : {"-tp-", "-cp-", "-dp-", "-pp-"})
          if (padded.find(axis) == std::string::npos || order.size() != 11)
            return "expected tp, cp, dp and pp once each, joined by '-'";
        return {};
      });
  parallel
      .add(
          "transport", &Part::transport, "",
          "How collectives travel. In host memory: node uses shared memory (all ranks on one "
          "node), auto uses it where it can. On GPUs: nccl, or staged through host memory (by mpi, "
          "by node, by the better of them); auto is nccl where it can be.")
      .one_of({"auto", "mpi", "node", "nccl", "staged"});
  parallel.add("share_device", &Part::share_device, "",
               "Several ranks may work on one GPU; their collectives are staged then.");
  parallel
      .add("timeout", &Part::timeout, "seconds",
           "A collective that takes longer ends the run with exit code 5 and names the ranks.")
      .in_seconds()
      .above(0);
}

}  // namespace choir::deck
