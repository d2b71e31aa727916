#include "choir/train/weight_check.hpp"

#include <algorithm>
#include <map>

#include "choir/comm/gather_text.hpp"
#include "choir/comm/mpi_session.hpp"
#include "choir/core/error.hpp"
#include "choir/core/text.hpp"

namespace choir {
namespace {

/// A group with what its ranks hold; nothing when they agree.
void judge(const std::vector<int>& ranks, const std::vector<std::uint64_t>& digests,
           std::vector<WeightDispute>& list) {
  std::map<std::uint64_t, int> votes;
  for (const int r : ranks) ++votes[digests[static_cast<std::size_t>(r)]];
  if (votes.size() == 1) return;
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool majority = 2 * most->second > static_cast<int>(ranks.size());
  WeightDispute dispute{.ranks = ranks, .wrong = {}};
  for (const int r : ranks)
    if (!majority || digests[static_cast<std::size_t>(r)] != most->first)
      dispute.wrong.push_back(r);
  list.push_back(std::move(dispute));
}

bool among(const std::vector<int>& list, int rank) {
  return std::find(list.begin(), list.end(), rank) != list.end();
}

std::string listed(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (const int r : ranks) words.push_back(std::to_string(r));
  return join(words, ", ");
}

/// Collective over the replicas. The first parameter in which they differ, "" when that cannot be
/// told.
std::string first_difference(Engine& engine) {
  const ModelInstance& instance = engine.instance();
  const ParameterStorage& storage = instance.storage();
  Communicator& replicas = engine.mesh().host_replicas();
  if (storage.sharding().values_sharded()) return {};
  const auto ranks = static_cast<std::size_t>(replicas.size());
  std::vector<std::uint64_t> digests(ranks);
  std::string name;
  for (const Parameter* p : instance.parameters().all()) {
    digests[static_cast<std::size_t>(replicas.rank())] = storage.digest_of(*p);
    replicas.all_gather(digests.data(), 1, DType::i64);
    const bool equal = std::all_of(digests.begin(), digests.end(),
                                   [&](std::uint64_t d) { return d == digests[0]; });
    if (!equal && name.empty()) name = p->name;
  }
  return name;
}

/// "rank 3 on n12 (first in blocks.0.qkv.weight)"
std::string who(Engine& engine, const std::vector<int>& named) {
  Communicator& world = engine.mesh().world();
  const std::string first = first_difference(engine);
  const std::string mine = fmt::format("rank {} on {}{}", world.rank(), host_name(),
                                       first.empty() ? "" : fmt::format(" (first in {})", first));
  const std::vector<std::string> all = gather_texts(world, mine);
  std::vector<std::string> wanted;
  for (std::size_t r = 0; r < all.size(); ++r)
    if (among(named, static_cast<int>(r))) wanted.push_back(all[r]);
  std::string text = join(wanted, ", ");
  broadcast_text(world, text);
  return text;
}

}  // namespace

std::vector<WeightDispute> disputes(const Layout& layout,
                                    const std::vector<WeightDigest>& digests) {
  std::vector<std::uint64_t> all, shared;
  for (const WeightDigest& d : digests) all.push_back(d.all), shared.push_back(d.shared);
  std::vector<WeightDispute> list;
  for (int r = 0; r < layout.ranks(); ++r)
    if (const std::vector<int> group = layout.replicas(r); group.front() == r)
      judge(group, all, list);
  for (const std::vector<int>& group : layout.groups({Axis::tensor})) judge(group, shared, list);
  return list;
}

void check_weights(Engine& engine, std::int64_t step) {
  const ParameterStorage& storage = engine.instance().storage();
  Communicator& world = engine.mesh().world();
  std::vector<WeightDigest> digests(static_cast<std::size_t>(world.size()));
  digests[static_cast<std::size_t>(world.rank())] = {.all = storage.digest(),
                                                     .shared = storage.digest(true)};
  static_assert(sizeof(WeightDigest) == 2 * sizeof(std::int64_t));
  world.all_gather(digests.data(), 2, DType::i64);
  const std::vector<WeightDispute> list = disputes(engine.mesh().layout(), digests);
  if (list.empty()) return;
  std::vector<int> named;
  std::string groups;
  for (const WeightDispute& dispute : list) {
    for (const int r : dispute.wrong)
      if (!among(named, r)) named.push_back(r);
    groups += fmt::format("{}of ranks {}{}", groups.empty() ? "" : "; ", listed(dispute.ranks),
                          dispute.wrong.size() == dispute.ranks.size()
                              ? " none has a majority"
                              : fmt::format(" the others agree, not {}", listed(dispute.wrong)));
  }
  NumericError error(
      fmt::format("step {}: weights that should be the same bits differ: {}: {}", step,
                  who(engine, named), groups),
      "the memory or the arithmetic of that rank is at fault: go on without its node, from the "
      "last checkpoint");
  error.set_agreed_ranks(world.size());
  throw error;
}

}  // namespace choir
