#pragma once
// Brings matrices together on their owners and back to the ranks that hold their parts.

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"
#include "src/optim/matrix_owners.hpp"

namespace choir {

/// Messages of unequal sizes from every rank of a communicator to every rank, over memory that does
/// not move: an exchange for each distance between ranks, so that every transport has them.
class AllToAll {
 public:
  AllToAll(int ranks, int rank);
  // The pieces from one rank to another are sent and received in the order of these calls.
  void add_send(int to, const TensorView& piece) {
    sent_[static_cast<std::size_t>(to)].push_back(piece);
  }
  void add_receive(int from, const TensorView& piece) {
    received_[static_cast<std::size_t>(from)].push_back(piece);
  }
  /// After the last piece.
  void finish();
  /// Collective; `ranks` may be nullptr for one rank. Allocates nothing.
  void run(const Stream& stream, Communicator* ranks) const;

 private:
  int ranks_, rank_;
  std::vector<std::vector<TensorView>> sent_, received_;  // by peer
  std::vector<std::vector<Message>> exchanges_;
};

/// The exchange of each round, in two hops: along the data ranks, then along the tensor ranks. Each
/// rank sends a part of a matrix to the data rank of the owner within its own ZeRO group, and that
/// one sends it on to the owner; the results take the same way back, to every rank that has a slice
/// or a copy of the part. Elements sent per rank: twice those of the matrices, divided by the ranks
/// (per hop that has several ranks).
class MatrixExchange {
 public:
  MatrixExchange(const ParameterStorage& storage, Device& device, std::vector<MatrixRound> rounds);

  std::span<const MatrixRound> rounds() const { return rounds_; }
  /// Elements of a matrix in this rank's slice of a bucket.
  struct Slice {
    const MatrixBlock* block = nullptr;
    Range in_bucket;
    TensorView elements;  ///< sent by gather() if `sent`, and received by scatter()
    bool sent = false;
  };
  /// The slices of a bucket, in its order. Valid from collect() to update() of the round.
  std::span<const Slice> slices(std::size_t bucket) const { return slices_[bucket]; }
  const Matrix& matrix_of(std::size_t bucket, const MatrixBlock& block) const {
    return rounds_[round_of_[bucket]].matrices[block.matrix];
  }

  /// Collective over both communicators; `tensor` may be nullptr for one rank.
  void gather(const Stream& stream, Communicator& data, Communicator* tensor,
              std::size_t round) const;
  void scatter(const Stream& stream, Communicator& data, Communicator* tensor,
               std::size_t round) const;
  /// Local, between the two: work(x) changes each matrix [rows, columns] that this rank owns. On a
  /// device that only plans, those of the owner with the most work.
  void on_owned(const Stream& stream, std::size_t round,
                const std::function<void(const TensorView&)>& work) const;
  void add_to(MemoryPlan& plan) const;

 private:
  struct Part {
    const MatrixBlock* block = nullptr;
    TensorView elements;  ///< row by row
  };
  struct Whole {
    const Matrix* matrix = nullptr;
    std::vector<Part> parts;
  };
  struct Plan {
    AllToAll data_there, data_back, tensor_there, tensor_back;
    std::vector<Whole> owned;
  };
  struct Sizes {
    std::int64_t slices = 0, column = 0, gathered = 0, largest = 0;
  };
  Sizes sizes_of(const MatrixRound& round) const;
  Plan plan_of(std::size_t round);
  void take_slice(Plan& plan, const MatrixBlock& block, const Matrix& matrix);
  TensorView take_part(Plan& plan, const MatrixBlock& block);
  Range slice_of(std::size_t bucket, int data) const;
  /// The next elements of one of the areas below.
  static TensorView next_of(const TensorView& area, std::int64_t& used, std::int64_t count) {
    return area.slice((used += count) - count, count);
  }

  const ParameterStorage* storage_;
  std::vector<MatrixRound> rounds_;
  int slice_count_, data_, data_ranks_, tensor_, tensor_ranks_;
  bool plans_only_;
  std::vector<std::size_t> round_of_;       // by bucket
  std::vector<std::vector<Slice>> slices_;  // by bucket
  std::vector<Plan> plans_;                 // by round
  Buffer memory_;
  TensorView slice_area_;  // this rank's slices of matrices: sent, then received
  TensorView column_;      // parts of this tensor rank, of matrices whose owner is this data rank
  TensorView gathered_;    // parts of all tensor ranks, of own matrices; on one rank the column
  TensorView whole_;       // one matrix
  Sizes used_;             // of these areas, while a round is planned
};

}  // namespace choir
