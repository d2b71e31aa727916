#pragma once
// The Euclidean norm of the whole gradient, or of the trained weights: one number over unique
// elements, and the sums it is computed from.
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"
#include "kernels/sums/sums.hpp"
#include "src/parallel/gradients/offloaded_gradients.hpp"

namespace choir {

/// Every logical tensor of the model, or tile of one, is cut into fixed chunks. Each rank of the
/// tensor axis cuts the part of a tensor that it owns. If several ranks hold a part, one of them
/// counts it, and of tied weights one copy is counted. A rank adds the chunks (f64) of each tensor
/// that it has a part of. Only these sums, one per tensor and owning rank of the tensor axis, are
/// reduced over the ranks: a few bytes per tensor. All ranks get the same bits, because ranks with
/// different parts never contribute to the same number.
///
/// With `exact`, the reduced sums are those of all chunks of the model, added in one fixed tree.
/// The result then depends neither on data-parallel ranks nor on pipeline stages, threads or
/// buckets, and costs 8 bytes per 16,384 parameters of the model on every rank. Data-parallel ranks
/// that own slices exchange their pieces of the chunks that slice boundaries cut: at most one chunk
/// per boundary, a few at a time. The sums of the last few steps are kept, so that the tensors of a
/// bad step can be named after the next step has been queued.
///
/// Gradients in host memory are read through windows, once. The sums of their chunks are the same
/// numbers.
class TrainedNorm {
 public:
  enum class Of { gradients, masters };
  struct Options {
    int places = 1;      ///< number of steps whose sums are kept
    bool exact = false;  ///< see above
    Of of = Of::gradients;
  };
  TrainedNorm(const ParameterStorage& storage, Device& device)
      : TrainedNorm(storage, device, Options()) {}
  TrainedNorm(const ParameterStorage& storage, Device& device, const Options& options);

  /// Collective over the data ranks of the storage and over `holders`, the axes whose ranks hold
  /// other parts of the model (tensor, pipeline); called after all reductions. Whole gradients are
  /// read by all data ranks together, slices by their owners. Afterwards square_sum() holds the sum
  /// of squares, and sums(place) the sums it was computed from.
  void compute(const Stream& stream, std::span<Communicator* const> holders, int place = 0);

  // The three parts of compute(), for a caller that sums further numbers over the same ranks and
  // does so in one message.

  /// Adds up what this rank holds, in sums(place). Collective over the data ranks that own slices,
  /// with `exact` only.
  void collect(const Stream& stream, int place = 0);
  /// Reduces sums(place), in the order of the data ranks and `holders`. Collective over them.
  void reduce(std::span<Communicator* const> holders, int place = 0) const;
  /// square_sum() from the reduced sums(place). Local.
  void total(const Stream& stream, int place = 0) const;

  /// Number of sums(), the same on every rank.
  std::int64_t count() const { return count_; }
  /// Logical tensors, tiles together, in the order of their sums; the same for gradients and
  /// masters, and on every rank.
  struct Tensor {
    std::string name;
    std::int64_t first_sum = 0;
  };
  std::vector<Tensor> tensors() const;
  /// After compute(): the sums over all ranks, f64 on the device.
  TensorView sums(int place = 0) const { return sums_.slice(place * count_, count_); }

  /// Device scalar (f64).
  TensorView square_sum() const { return square_sum_; }
  /// Waits for the stream and returns the names of the parameters whose gradient was not finite
  /// when `place` was computed. Local; the same on every rank.
  std::vector<std::string> not_finite(int place = 0) const;
  void add_to(MemoryPlan& plan) const {
    plan.add(of_ == Of::gradients ? "gradient norm" : "weight norms",
             memory_.bytes() + border_memory_.bytes());
    if (windows_) plan.add("offload windows", windows_->bytes());
  }

 private:
  /// Consecutive sums of the part of a parameter that one rank of the tensor axis counts.
  struct Run {
    const Parameter* parameter;
    const Parameter* whole;  // the first tile of its logical tensor
    std::int64_t count;
  };
  /// Local elements that this rank counts, and their chunks.
  struct Part {
    const Parameter* parameter;
    Range elements;
    std::int64_t chunks;
    std::int64_t at;    // first chunk, in chunk_sums_
    std::int64_t turn;  // first chunk, among those of this rank
  };
  /// Chunks of this rank that are added to one sum.
  struct Total {
    std::int64_t turn, chunks, sum;
  };
  /// A chunk with elements in several slices of this rank's group.
  struct Cut {
    const Parameter* parameter;
    Range elements;      // local
    std::int64_t chunk;  // index in chunk_sums_
  };
  void add_sums(const Parameter* p, const Parameter* whole);
  void find_cuts();
  /// Adds f64 sums of squares to `chunks`, which are zero.
  void make_windows(const ParameterStorage& storage);
  /// Computes summed_.
  void sum_squares(const Stream& stream);
  void sum_squares_outside(const Stream& stream);
  void sum_shares(const Stream& stream, const TensorView& chunks);
  void sum_slices(const Stream& stream, const TensorView& chunks);
  void sum_cuts(const Stream& stream, const TensorView& chunks);
  /// This rank's slice of a gradient or a master, 1-D.
  TensorView own_part(const Parameter& p) const {
    const Bucket& bucket = storage_->bucket_of(p);
    return storage_->owned_part(
        of_ == Of::gradients ? storage_->gradients(bucket) : storage_->masters(bucket), p);
  }

  const ParameterStorage* storage_;
  Of of_;
  Device* device_;
  bool exact_;
  std::vector<Run> runs_;  // for the whole model
  std::vector<Part> parts_;
  std::vector<Total> totals_;  // empty with exact
  std::int64_t count_ = 0;     // number of sums
  std::int64_t mine_ = 0;      // chunks of this rank
  // Chunks of each rank of the tensor axis. All ranks allocate the maximum, as planned for all.
  std::vector<std::int64_t> of_ranks_{0};
  Buffer memory_, border_memory_;
  TensorView sums_;        // [places * count]
  TensorView chunk_sums_;  // [mine] of this rank; empty with exact, where sums are those of chunks
  TensorView square_sum_;
  std::vector<ops::Summed> summed_;  // arguments of one call; kept, so that steps allocate nothing
  /// Tensors in host memory that one read fetches: a range of `pieces_`, and their bytes.
  struct Fetch {
    std::size_t first = 0, count = 0;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  std::optional<HostWindows> windows_;
  std::size_t window_bytes_ = 0;  // longest read
  std::vector<ops::Summed> pieces_;
  std::vector<Fetch> fetches_;
  std::vector<Cut> cuts_;  // exact only; the same on every rank of a group
  TensorView border_;      // [a few chunks] of the gradient or the masters
};

}  // namespace choir
