#include "choir/parallel/sharding/sharding.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/nn/parameter_set.hpp"

namespace choir {
namespace {

/// The number of consecutive data ranks per node; every node must have the same number.
int ranks_of_node(const Mesh& mesh) {
  const std::vector<int> ranks = mesh.layout().group(mesh.rank(), {Axis::data});
  const auto node = [&](std::size_t r) { return mesh.node_of(ranks[r]); };
  std::size_t size = 1;
  while (size < ranks.size() && node(size) == node(0)) ++size;
  bool even = ranks.size() % size == 0;
  for (std::size_t r = 0; even && r < ranks.size(); ++r)
    even = node(r) == node(r - r % size) && (r % size != 0 || r == 0 || node(r) != node(r - 1));
  if (!even)
    throw DeckError(
        "parallel.zero_group = \"node\": the nodes do not have the same number of consecutive "
        "data-parallel ranks",
        "give every node the same number of ranks, or set parallel.zero_group to \"all\"");
  return static_cast<int>(size);
}

std::string divisors_of(int n) {
  std::string text;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return text;
}

}  // namespace

Sharding::Sharding(Mesh& mesh, const ZeroOptions& options)
    : options_(options),
      contexts_(mesh.layout().size(Axis::context)),
      data_(&mesh.replicas()),
      group_(data_) {
  CHOIR_CHECK(options.stage >= 0 && options.stage <= 3, "ZeRO stage {}", options.stage);
  CHOIR_CHECK(options.prefetch >= 0, "ZeRO prefetch {}", options.prefetch);
  const int size = group_size(mesh, options);
  // The context ranks of a data rank are neighbours among the replicas, and a group contains all of
  // them.
  if (size < data_ranks()) form_groups(mesh, size * contexts_);
  if (slices() > 1 && std::string_view(group_->transport()) == "nccl")
    own_gathers_ = group_->duplicate("zero gathers");
}

int Sharding::group_size(const Mesh& mesh, const ZeroOptions& options) {
  const int all = mesh.layout().size(Axis::data);
  if (options.stage == 0 || options.group == ZeroOptions::kAll) return all;
  const int size = options.group == ZeroOptions::kNode ? ranks_of_node(mesh) : options.group;
  if (size < 1 || all % size != 0)
    throw DeckError(
        fmt::format("parallel.zero_group = {} does not divide the {} data-parallel "
                    "ranks",
                    size, all),
        fmt::format("legal on {} ranks: all, node, or one of {}", all, divisors_of(all)));
  return size;
}

void Sharding::form_groups(Mesh& mesh, int size) {
  const int all = data_->size();
  const int part = data_->rank() % size, first = data_->rank() - part;
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), first);
  own_group_ = mesh.replica_group(members, "zero group");
  group_ = own_group_.get();
  std::vector<int> same_slice;
  for (int r = part; r < all; r += size) same_slice.push_back(r);
  replicas_ = mesh.replica_group(same_slice, "zero replicas");
}

Range Sharding::slice(const Bucket& bucket) const {
  const std::int64_t count = bucket.size / slices();
  return {stage() == 0 ? 0 : group_->rank() * count, count};
}

Range Sharding::owned(const Bucket& bucket, const Parameter& p) const {
  const Range mine = slice(bucket);
  const std::int64_t first = std::max(mine.first, p.offset);
  const std::int64_t end = std::min(mine.end(), p.offset + p.local_count());
  return end > first ? Range{first - p.offset, end - first} : Range{0, 0};
}

std::int64_t Sharding::first_micro_batch(std::int64_t per_rank) const {
  if (!gradients_sharded()) return data_->rank() / contexts_ * per_rank;
  return replica() * (group_->size() / contexts_) * per_rank + group_->rank() / contexts_;
}

}  // namespace choir
