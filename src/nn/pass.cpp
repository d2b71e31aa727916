#include "choir/nn/pass.hpp"

#include <utility>

namespace choir {
namespace {

constexpr std::size_t kMaxSaved = 1 << 15;
constexpr std::size_t kMaxPostponed = 1 << 14;

}  // namespace

Sequence share_of_sequences(std::int64_t batch, std::int64_t tokens, const ContextAxis& context) {
  const PositionShare share = position_share(tokens, context.rank(), context.size());
  return {.batch = batch,
          .tokens = share.tokens,
          .first_position = share.first,
          .whole_tokens = tokens};
}

Pass::Pass(Stream stream, Arena& arena, const Precision& precision, std::uint64_t seed,
           const TensorAxis& tensor, const ContextAxis& context)
    : stream_(stream),
      arena_(&arena),
      precision_(precision),
      seed_(seed),
      tensor_(tensor),
      context_(context) {
  saved_.reserve(kMaxSaved);
  postponed_.reserve(kMaxPostponed);
}

void Pass::begin(Mode mode, const Sequence& sequence, std::int64_t first_sample,
                 const std::int64_t* on_device) {
  CHOIR_CHECK(saved_.empty(), "{} tensors were saved and never used", saved_.size());
  CHOIR_CHECK(postponed_.empty(), "{} weight gradients never ran",
              postponed_.size() - next_postponed_);
  mode_ = mode;
  sequence_ = sequence;
  first_sample_ = first_sample;
  first_sample_on_device_ = on_device;
  piece_ = 0;
  record_ = -1;
  if (!shares_positions()) return;
  const std::int64_t n = sequence.tokens, ranks = context_.size();
  CHOIR_CHECK(sequence.whole_tokens > 0 && n * ranks >= sequence.whole_tokens &&
                  sequence.first_position == context_.rank() * n,
              "{} positions from {} of {} on rank {} of {}: not a share of sequences", n,
              sequence.first_position, sequence.whole_tokens, context_.rank(), ranks);
  if (breaks(NegativeControl::positions_local)) sequence_.first_position = 0;
}

Tensor Pass::allocate(const Shape& shape, const char* tag) {
  return arena_->allocate(precision_.compute, shape, tag);
}

Tensor Pass::allocate_statistic(const Shape& shape, const char* tag) {
  return arena_->allocate(precision_.statistic, shape, tag);
}

Tensor Pass::scratch(std::int64_t bytes, const char* tag) {
  return arena_->allocate(DType::u8, {bytes}, tag);
}

void Pass::save(const Tensor& tensor) {
  if (!saves()) return;
  CHOIR_CHECK(saved_.size() < kMaxSaved, "more than {} tensors saved", kMaxSaved);
  saved_.push_back(tensor);
}

Tensor Pass::pop() {
  CHOIR_CHECK(!saved_.empty(), "backward asks for more than forward saved");
  Tensor tensor = std::move(saved_.back());
  saved_.pop_back();
  return tensor;
}

void Pass::postpone(Postponed entry) {
  CHOIR_CHECK(postponed_.size() < kMaxPostponed, "more than {} weight gradients wait",
              kMaxPostponed);
  postponed_.push_back(std::move(entry));
}

void Pass::begin_gradients(BucketHooks& hooks, int bucket) {
  if (!postpone_) return hooks.begin_gradients(bucket);
  postpone({Postponed::Kind::begin_gradients, piece_, bucket, {}});
}

void Pass::weight_gradient(WeightGradient work) {
  if (!postpone_) return work.run(*this, work.module, work.input, work.d_output);
  postpone({Postponed::Kind::weight_gradient, piece_, -1, std::move(work)});
}

void Pass::gradients_ready(BucketHooks& hooks, int bucket) {
  if (!postpone_) return hooks.gradients_ready(bucket);
  postpone({Postponed::Kind::gradients_ready, piece_, bucket, {}});
}

void Pass::run_weight_gradients(int piece, BucketHooks& hooks) {
  CHOIR_CHECK(next_postponed_ < postponed_.size(), "no weight gradient of piece {} waits", piece);
  CHOIR_CHECK(postponed_[next_postponed_].piece == piece,
              "weight gradients of piece {} wait before those of piece {}",
              postponed_[next_postponed_].piece, piece);
  for (; next_postponed_ < postponed_.size(); ++next_postponed_) {
    Postponed& entry = postponed_[next_postponed_];
    if (entry.piece != piece) return;
    if (entry.kind == Postponed::Kind::begin_gradients) hooks.begin_gradients(entry.bucket);
    if (entry.kind == Postponed::Kind::gradients_ready) hooks.gradients_ready(entry.bucket);
    if (entry.kind == Postponed::Kind::weight_gradient) {
      // Its tensors go when it has run.
      const WeightGradient work = std::exchange(entry.work, {});
      work.run(*this, work.module, work.input, work.d_output);
    }
  }
  postponed_.clear();
  next_postponed_ = 0;
}

}  // namespace choir
