#include "choir/lab/tune/tune_place.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "choir/comm/agreement.hpp"
#include "choir/core/text.hpp"
#include "choir/train/step/workplace.hpp"

namespace choir {
namespace {

/// The usable share of a node without GPUs. The rest is for the system, the program, its readers
/// and buffers.
constexpr double kUsableOfNode = 0.8;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// Sets the ranks to those of this job, or of the requested one.
void take_ranks(const TunePlace& place, Mesh& mesh, PlanCase& to) {
  Communicator& world = mesh.world();
  const int here = world.size();
  together(world, [&] {
    if (here > 1 && (place.ranks || place.ranks_per_node))
      throw DeckError("--ranks and --gpus-per-node are for tuning on one process",
                      "omit them: under mpiexec the started ranks are used");
    to.ranks = here > 1 ? here : ranks_asked(place.ranks, to.deck);
    to.target = find_target(place.target, to.deck);
    if (here == 1)
      to.ranks_per_node = ranks_per_node_asked(place.ranks_per_node, to.ranks, to.target);
  });
  require_equal(world, static_cast<std::uint64_t>(to.target.kind), "the kind of device");
  if (here > 1) {
    std::int64_t on_node = mesh.node().size();
    world.all_reduce(&on_node, 1, DType::i64, ReduceOp::max);
    to.ranks_per_node = static_cast<int>(on_node);
  }
  choose_threads(mesh.node());
  if (here == 1) take_threads_of(to);
}

/// The number of ranks on one GPU of this machine, if they may share it.
int sharing_a_card(const TunePlace& place, const PlanCase& to) {
  const bool here = place.target.empty() || place.target == "here";
  if (!here || !to.deck.parallel.share_device) return 1;
  const int cards = std::max(1, to.target.ranks_per_node);
  return (std::min(to.ranks, to.ranks_per_node) + cards - 1) / cards;
}

/// Sets the least memory that any rank may use.
std::string take_memory(const TunePlace& place, Mesh& mesh, PlanCase& to) {
  std::string limit;
  const PlanTarget& target = to.target;
  double bytes = 0;
  together(mesh.world(), [&] {
    if (!place.memory.empty())
      bytes = memory_of_word(place.memory), limit = "--memory";
    else if (target.node_memory)
      bytes = kUsableOfNode * target.memory_of_rank(std::min(to.ranks, to.ranks_per_node)),
      limit = fmt::format("{:.0f} % of the memory of a node for its {} rank(s)",
                          100 * kUsableOfNode, std::min(to.ranks, to.ranks_per_node));
    else
      bytes = target.memory / sharing_a_card(place, to), limit = "of the card";
  });
  mesh.world().all_reduce(&bytes, 1, DType::f64, ReduceOp::min);
  to.target.memory = bytes;
  to.target.node_memory = false;
  return limit;
}

}  // namespace

double memory_of_word(const std::string& word) {
  static const std::map<std::string, double> kUnits{{"", kGiB},    {"B", 1},
                                                    {"KiB", 1024}, {"MiB", 1024.0 * 1024},
                                                    {"GiB", kGiB}, {"TiB", 1024 * kGiB}};
  double number = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, problem] = std::from_chars(word.data(), end, number);
  const auto unit = kUnits.find(std::string(trim(std::string_view(stop, end))));
  if (problem != std::errc() || unit == kUnits.end() || !(number > 0) || !std::isfinite(number))
    throw DeckError(
        fmt::format("--memory {} is not an amount of memory", word),
        "give the memory that one rank may use: a number of GiB, or 512MiB, 6GiB, 6442450944B");
  return number * unit->second;
}

std::string take_place(const TunePlace& place, Mesh& mesh, PlanCase& to) {
  take_ranks(place, mesh, to);
  return take_memory(place, mesh, to);
}

}  // namespace choir
