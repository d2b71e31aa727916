#include "src/train/loop/weight_check.hpp"

#include <algorithm>
#include <map>
#include <span>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/process.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

/// Appends a dispute if the digests of a group's ranks differ.
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

/// Layout::replicas() of every rank; each group once, ordered by its first rank.
std::vector<std::vector<int>> replica_groups(const Layout& layout) {
  std::vector<std::vector<int>> all;
  for (int r = 0; r < layout.ranks(); ++r) {
    const Coordinates at = layout.coordinates(r);
    if (at[Axis::data] == 0 && at[Axis::context] == 0) all.push_back(layout.replicas(r));
  }
  return all;
}

bool among(const std::vector<int>& list, int rank) {
  return std::find(list.begin(), list.end(), rank) != list.end();
}

std::string rank_list(const std::vector<int>& ranks) {
  std::vector<std::string> words;
  for (const int r : ranks) words.push_back(std::to_string(r));
  return join(words, ", ");
}

/// Depends on all digests and on their order.
std::uint64_t fold(std::uint64_t all, std::uint64_t next) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  return (all ^ next) * kOdd;
}

/// `digests` are those of the parameters in their order; `whole` marks those that are whole on the
/// tensor axis.
WeightDigest folded(std::span<const std::uint64_t> digests, const std::vector<bool>& whole) {
  WeightDigest all;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    all.all = fold(all.all, digests[i]);
    if (whole[i]) all.shared = fold(all.shared, digests[i]);
  }
  return all;
}

std::vector<bool> whole_on_tensor_axis(const ParameterStorage& storage) {
  std::vector<bool> whole;
  for (const Parameter& p : storage.parameters().parameters())
    whole.push_back(p.shard.split_dim < 0);
  return whole;
}

/// Everything that a comparison of weights needs, without the engine.
struct Comparison {
  Layout layout;
  int holders = 1;  ///< consecutive replicas that together hold one copy of the weights
  std::vector<bool> whole;

  explicit Comparison(const Engine& engine)
      : layout(engine.instance().mesh().layout()),
        whole(whole_on_tensor_axis(engine.instance().storage())) {
    const Sharding& sharding = engine.instance().storage().sharding();
    if (sharding.values_sharded()) holders = sharding.group().size();
  }

  /// Compares the digests of all ranks; `world` has the ranks in their order. Collective.
  std::vector<WeightDispute> judge(Communicator& world,
                                   std::span<const std::uint64_t> digests) const {
    std::vector<WeightDigest> all(static_cast<std::size_t>(world.size()));
    all[static_cast<std::size_t>(world.rank())] = folded(digests, whole);
    static_assert(sizeof(WeightDigest) == 2 * sizeof(std::int64_t));
    world.all_gather(all.data(), 2, DType::i64);
    return disputes(layout, held_together(all));
  }

 private:
  std::vector<WeightDigest> held_together(const std::vector<WeightDigest>& parts) const {
    if (holders == 1) return parts;
    std::vector<WeightDigest> together(parts.size());
    const auto part = static_cast<std::size_t>(holders);
    for (const std::vector<int>& replicas : replica_groups(layout))
      for (std::size_t first = 0; first < replicas.size(); first += part) {
        const std::span<const int> members(replicas.data() + first, part);
        WeightDigest sum;
        for (const int r : members) {
          sum.all = fold(sum.all, parts[static_cast<std::size_t>(r)].all);
          sum.shared = fold(sum.shared, parts[static_cast<std::size_t>(r)].shared);
        }
        for (const int r : members) together[static_cast<std::size_t>(r)] = sum;
      }
    return together;
  }
};

/// "among ranks 0, 1, 2 all agree except 1; ..."
std::string to_string(const std::vector<WeightDispute>& list) {
  std::string text;
  for (const WeightDispute& dispute : list)
    text += fmt::format("{}among ranks {}{}", text.empty() ? "" : "; ", rank_list(dispute.ranks),
                        dispute.wrong.size() == dispute.ranks.size()
                            ? " there is no majority"
                            : fmt::format(" all agree except {}", rank_list(dispute.wrong)));
  return text;
}

constexpr const char* kDiffer = "weights that should be the same bits differ";

/// The first parameter in which the replicas differ, "" if that is unknown. Collective over the
/// replicas.
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
  for (const std::vector<int>& group : replica_groups(layout)) judge(group, all, list);
  for (const std::vector<int>& group : layout.groups({Axis::tensor})) judge(group, shared, list);
  return list;
}

void check_weights(Engine& engine, std::int64_t step) {
  engine.instance().gatherer().complete_update();
  const ParameterStorage& storage = engine.instance().storage();
  Communicator& world = engine.mesh().world();
  std::vector<std::uint64_t> digests;
  for (const Parameter& p : storage.parameters().parameters())
    digests.push_back(storage.digest_of(p));
  const std::vector<WeightDispute> list = Comparison(engine).judge(world, digests);
  if (list.empty()) return;
  std::vector<int> named;
  for (const WeightDispute& dispute : list)
    for (const int r : dispute.wrong)
      if (!among(named, r)) named.push_back(r);
  NumericError error(
      fmt::format("step {}: {}: {}: {}", step, kDiffer, who(engine, named), to_string(list)),
      "the memory or the arithmetic of that rank is faulty: continue without its node from the "
      "last checkpoint");
  error.set_agreed_ranks(world.size());
  throw error;
}

SaveCheck weight_check_of_save(Engine& engine) {
  CHOIR_CHECK(reads_weights_aside(engine), "weights on the {} device",
              name_of(engine.instance().device().kind()));
  if (engine.mesh().world().size() == 1) return {};
  const ParameterStorage& storage = engine.instance().storage();
  SaveCheck check;
  for (const Parameter& p : storage.parameters().parameters()) {
    const TensorView view = storage.compared(p).first;
    check.memory.emplace_back(static_cast<const std::byte*>(view.data), view.bytes());
  }
  check.judge = [comparison = Comparison(engine)](Communicator& comm,
                                                  std::span<const std::uint64_t> digests) {
    const std::vector<WeightDispute> list = comparison.judge(comm, digests);
    return list.empty() ? std::string() : fmt::format("{}: {}", kDiffer, to_string(list));
  };
  return check;
}

bool reads_weights_aside(Engine& engine) {
  const ModelInstance& instance = engine.instance();
  return instance.device().host_visible() && instance.storage().offloaded() == nullptr;
}

}  // namespace choir
