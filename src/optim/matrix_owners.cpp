#include "src/optim/matrix_owners.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "choir/core/error.hpp"

namespace choir {
namespace {

/// The extents of a tensor before, along and behind the dim that is divided (the first, if none).
struct Extents {
  std::int64_t outer = 1, along = 1, inner = 1;
};

Extents extents_of(const Parameter& p) {
  const int dim = std::max(0, p.shard.split_dim);
  Extents e;
  for (int d = 0; d < p.shape.rank(); ++d)
    (d < dim ? e.outer : d == dim ? e.along : e.inner) *= p.shape[d];
  return e;
}

/// The extents of the sections of the rows; one for a tensor that is not divided along them.
std::vector<std::int64_t> row_sections(const Parameter& p) {
  std::vector<std::int64_t> rows;
  if (p.shard.split_dim == 0)
    for (const Section& section : p.shard.sections) rows.push_back(section.extent);
  if (rows.empty()) rows.push_back(p.shape[0]);
  return rows;
}

/// The split of a parameter for any tensor rank. A parameter of sequences that each rank has for
/// itself is whole on all of them, and the first one owns it.
std::vector<ShardRun> runs_along(const Parameter& p, const TensorSplit& tensor, int rank) {
  const Extents e = extents_of(p);
  if (p.split.ranks == 1 || p.shard.split_dim < 0) {
    std::vector<ShardRun> runs;
    if (p.shard.split_dim < 0 && p.shard.tiles == 1) {
      runs = {{0, 0, e.along, rank == 0}};
      return runs;
    }
    TensorSplit alone = p.split;
    alone.rank = 0, alone.ranks = 1;
    ShardSpec spec = p.shard;
    spec.split_dim = 0;
    runs = shard_runs({e.along}, spec, alone);
    for (ShardRun& run : runs) run.owned = rank == 0;
    return runs;
  }
  TensorSplit split = tensor;
  split.rank = rank;
  ShardSpec spec = p.shard;
  spec.split_dim = 0;
  return shard_runs({e.along}, spec, split);
}

class Rounds {
 public:
  Rounds(const ParameterSet& parameters, const OwnerOptions& options)
      : parameters_(parameters), options_(options) {}

  std::vector<MatrixRound> all() {
    find_ends();
    for (std::size_t b = 0; b < parameters_.buckets().size(); ++b) {
      const Bucket& bucket = parameters_.buckets()[b];
      if (!bucket.trainable) continue;
      if (ends_.count(b) == 0 && last_ <= b) close();
      open_.count = b + 1 - (open_.count == 0 ? open_.first = b : open_.first);
      for (const Parameter* p : bucket.parameters)
        if (options_.chosen(*p)) add(*p, b);
      if (const auto end = ends_.find(b); end != ends_.end()) last_ = std::max(last_, end->second);
      if (last_ <= b && (open_.matrices.empty() || full())) close();
    }
    close();
    return std::move(rounds_);
  }

 private:
  /// By bucket: the last bucket with a tile of one of its matrices.
  void find_ends() {
    std::map<std::string, std::size_t> first;
    for (std::size_t b = 0; b < parameters_.buckets().size(); ++b) {
      const Bucket& bucket = parameters_.buckets()[b];
      for (const Parameter* p : bucket.parameters) {
        if (!bucket.trainable || !options_.chosen(*p)) continue;
        const std::size_t from = first.emplace(p->name, b).first->second;
        ends_[b] = std::max(ends_[b], b);
        ends_[from] = std::max(ends_[from], b);
      }
    }
  }

  void add(const Parameter& p, std::size_t bucket) {
    const Extents e = extents_of(p);
    CHOIR_CHECK(p.shard.split_dim <= 0 || (p.shard.split_dim == 1 && p.shard.sections.size() <= 1),
                "{} is no matrix that is divided along its rows or columns", p.name);
    CHOIR_CHECK(p.shard.alignment == 0, "{} is a padded matrix", p.name);
    const std::vector<std::int64_t> sections = row_sections(p);
    const auto [known, is_new] = by_name_.emplace(p.name, open_.matrices.size());
    if (is_new)
      for (std::size_t s = 0; s < sections.size(); ++s)
        open_.matrices.push_back({.parameter = &p,
                                  .section = s,
                                  .rows = sections[s],
                                  .columns = p.shape.count() / p.shape[0]});
    for (int rank = 0; rank < options_.tensor.ranks; ++rank) {
      std::size_t s = 0;
      std::int64_t begin = 0;  // of section s
      for (const ShardRun& run : runs_along(p, options_.tensor, rank)) {
        const bool by_rows = p.shard.split_dim <= 0;
        while (by_rows && run.logical >= begin + sections[s]) begin += sections[s++];
        MatrixBlock block{.matrix = known->second + s,
                          .tensor = rank,
                          .owned = run.owned,
                          .parameter = &p,
                          .bucket = bucket,
                          .in_bucket = {}};
        if (by_rows) {
          block.row = run.logical - begin, block.rows = run.count, block.columns = e.inner;
          block.in_bucket.first = p.offset + run.local * e.inner;
        } else {
          block.rows = e.outer, block.column = run.logical * e.inner;
          block.columns = run.count * e.inner;
          block.in_bucket.first = p.offset;
        }
        block.in_bucket.count = block.rows * block.columns;
        open_.blocks.push_back(block);
      }
    }
  }

  bool full() const {
    std::int64_t elements = 0;
    for (const Matrix& m : open_.matrices) elements += m.rows * m.columns;
    return elements >= options_.elements * options_.data_ranks * options_.tensor.ranks;
  }

  void close() {
    if (open_.count > 0) {
      assign();
      rounds_.push_back(std::move(open_));
    }
    open_ = {};
    by_name_.clear();
  }

  void assign() {
    const auto owners = static_cast<std::size_t>(options_.data_ranks * options_.tensor.ranks);
    totals_.resize(owners);
    open_.loads.assign(owners, 0);
    std::vector<std::size_t> order(open_.matrices.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto work = [&](std::size_t i) {
      return options_.work(open_.matrices[i].rows, open_.matrices[i].columns);
    };
    std::ranges::stable_sort(order,
                             [&](std::size_t a, std::size_t b) { return work(a) > work(b); });
    for (const std::size_t i : order) {
      std::size_t best = 0;
      for (std::size_t o = 1; o < owners; ++o)
        if (std::tuple(open_.loads[o], totals_[o]) < std::tuple(open_.loads[best], totals_[best]))
          best = o;
      open_.loads[best] += work(i);
      totals_[best] += work(i);
      open_.matrices[i].data = static_cast<int>(best) / options_.tensor.ranks;
      open_.matrices[i].tensor = static_cast<int>(best) % options_.tensor.ranks;
    }
  }

  const ParameterSet& parameters_;
  const OwnerOptions& options_;
  std::map<std::size_t, std::size_t> ends_;
  std::map<std::string, std::size_t> by_name_;  // first matrix of a tensor in the open round
  std::vector<double> totals_;                  // work of each owner in all rounds so far
  std::vector<MatrixRound> rounds_;
  MatrixRound open_;
  std::size_t last_ = 0;
};

}  // namespace

std::vector<MatrixRound> matrix_rounds(const ParameterSet& parameters,
                                       const OwnerOptions& options) {
  return Rounds(parameters, options).all();
}

}  // namespace choir
