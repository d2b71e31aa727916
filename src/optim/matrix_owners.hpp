#pragma once
// The matrices of a pipeline stage, their parts on its tensor ranks, and their owners: a rule that
// needs a matrix whole has one rank among the data and tensor ranks work on it. Pure functions of
// the layout, the same on all these ranks.

#include <cstdint>
#include <functional>
#include <vector>

#include "choir/nn/parameter_set.hpp"
#include "choir/parallel/sharding/sharding.hpp"
#include "src/optim/update_rule.hpp"

namespace choir {

/// A part of a matrix that one tensor rank holds: consecutive elements of a bucket there, which are
/// a rectangle of the matrix, row by row. Ranks may hold copies of a part; one of them owns it.
struct MatrixBlock {
  std::size_t matrix = 0;  ///< index in its round
  int tensor = 0;          ///< the rank that holds it
  bool owned = true;
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
  const Parameter* parameter = nullptr;  ///< the tile that holds it
  std::size_t bucket = 0;
  Range in_bucket;  ///< the same on all tensor ranks except for its first element
};

/// A tensor [out, in], or one of the sections of its rows, such as q, k and v.
struct Matrix {
  const Parameter* parameter = nullptr;  ///< the first tile
  std::size_t section = 0;
  std::int64_t rows = 0, columns = 0;
  int data = 0, tensor = 0;  ///< its owner
};

/// Consecutive trained buckets whose matrices are exchanged together.
struct MatrixRound {
  std::size_t first = 0, count = 0;  ///< buckets
  std::vector<Matrix> matrices;      ///< empty: the buckets have none
  std::vector<MatrixBlock> blocks;   ///< of all tensor ranks, in the order of matrices and tiles
  /// Work of each owner, data rank * tensor ranks + tensor rank.
  std::vector<double> loads;
};

struct OwnerOptions {
  int data_ranks = 1;
  TensorSplit tensor;
  /// A round is closed when an owner has this many elements on average.
  std::int64_t elements = std::int64_t{1} << 24;
  /// True for the parameters that are matrices.
  std::function<bool(const Parameter&)> chosen;
  /// Work on a matrix.
  std::function<double(std::int64_t rows, std::int64_t columns)> work;
};

/// The rounds over all trained buckets. In each, the matrix with the most work left goes to the
/// rank with the least work so far.
std::vector<MatrixRound> matrix_rounds(const ParameterSet& parameters, const OwnerOptions& options);

}  // namespace choir
