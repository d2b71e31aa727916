#include "choir/nn/pass.hpp"

#include <algorithm>
#include <utility>

#include "kernels/sums/sums.hpp"

namespace choir {
namespace {

// Capacity for a model of some 2000 blocks; a deeper one allocates more in its first micro-batch.
constexpr std::size_t kUsuallySaved = 1 << 15;
constexpr std::size_t kUsuallyPostponed = 1 << 14;
constexpr std::size_t kMaxSequences = 8;

}  // namespace

PositionShare position_share(std::int64_t whole_tokens, int share, int shares) {
  CHOIR_CHECK(whole_tokens >= 1 && share >= 0 && share < shares, "share {} of {} of {} positions",
              share, shares, whole_tokens);
  const std::int64_t tokens = (whole_tokens + shares - 1) / shares, first = share * tokens;
  return {tokens, first, std::clamp<std::int64_t>(whole_tokens - first, 0, tokens)};
}

void cut_positions(std::span<const std::int32_t> whole, std::int64_t whole_tokens,
                   const PositionShare& share, std::int32_t padding, std::span<std::int32_t> part) {
  const auto size = static_cast<std::int64_t>(whole.size());
  const std::int64_t batch = size / whole_tokens;
  CHOIR_CHECK(
      size % whole_tokens == 0 && static_cast<std::int64_t>(part.size()) == batch * share.tokens,
      "{} of {} tokens in sequences of {}, cut to {} each", part.size(), size, whole_tokens,
      share.tokens);
  const std::int32_t* from = whole.data() + (share.real > 0 ? share.first : 0);
  std::int32_t* to = part.data();
  for (std::int64_t b = 0; b < batch; ++b, from += whole_tokens)
    to = std::fill_n(std::copy_n(from, share.real, to), share.tokens - share.real, padding);
}

Sequence share_of_sequences(std::int64_t batch, std::int64_t tokens, const ContextAxis& context) {
  const int runs = context.runs(), rank = context.rank();
  const PositionShare share = context.share(tokens, rank, 0);
  return {.batch = batch,
          .tokens = runs * share.tokens,
          .first_position = share.first,
          .whole_tokens = tokens,
          .second_position = runs > 1 ? context.share(tokens, rank, 1).first : 0};
}

Pass::Pass(Stream stream, Arena& arena, const Precision& precision, std::uint64_t seed,
           const TensorAxis& tensor, const ContextAxis& context)
    : stream_(stream),
      arena_(&arena),
      precision_(precision),
      seed_(seed),
      tensor_(tensor),
      one_rank_{.order = tensor.order},
      context_(context) {
  sequences_.reserve(kMaxSequences);
  sequences_.resize(1);
  saved_.reserve(kUsuallySaved);
  postponed_.reserve(kUsuallyPostponed);
}

void Pass::begin(Mode mode, const Sequence& sequence, std::int64_t first_sample,
                 const std::int64_t* on_device) {
  CHOIR_CHECK(saved_.empty(), "{} tensors were saved and never used", saved_.size());
  CHOIR_CHECK(postponed_.empty(), "{} weight gradients never ran",
              postponed_.size() - next_postponed_);
  CHOIR_CHECK(current_ == 0, "a pass begins while it speaks of a sequence of the one before");
  mode_ = mode;
  sequences_.clear();
  add_sequence(sequence);
  first_sample_ = first_sample;
  first_sample_on_device_ = on_device;
  piece_ = 0;
  backward_ = false;
  record_ = -1;
  loss_sums_ = {};
  set_loss_factors(1, nullptr);
}

int Pass::add_sequence(const Sequence& sequence) {
  CHOIR_CHECK(sequences_.size() < kMaxSequences, "more than {} sequences", kMaxSequences);
  CHOIR_CHECK(sequence.state == nullptr || mode_ == Mode::generate,
              "streams go on in generation alone");
  sequences_.push_back(sequence);
  const int number = static_cast<int>(sequences_.size()) - 1;
  if (!shares_positions(sequence)) return number;
  const Sequence right = share_of_sequences(
      sequence.batch, std::max<std::int64_t>(1, sequence.whole_tokens), context_);
  CHOIR_CHECK(sequence.whole_tokens > 0 && sequence.tokens == right.tokens &&
                  sequence.first_position == right.first_position &&
                  sequence.second_position == right.second_position,
              "{} positions from {} (and {}) of {} on rank {} of {}: not a share of sequences",
              sequence.tokens, sequence.first_position, sequence.second_position,
              sequence.whole_tokens, context_.rank(), context_.size());
  return number;
}

void Pass::turn_to(int sequence) {
  const auto number = static_cast<std::size_t>(sequence);
  CHOIR_CHECK(number < sequences_.size(), "sequence {} of {}", sequence, sequences_.size());
  current_ = number;
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
  if (saves()) saved_.push_back(tensor);
}

Tensor Pass::pop() {
  CHOIR_CHECK(!saved_.empty(), "backward asks for more than forward saved");
  Tensor tensor = std::move(saved_.back());
  saved_.pop_back();
  return tensor;
}

// The sum of this call is made apart, so that its bits do not depend on what was added before.
void Pass::add_loss(std::size_t term, const TensorView& losses, const LossTargets& targets,
                    LossRows rows) {
  if (loss_sums_.terms == 0 || backward_) return;
  CHOIR_CHECK(term < loss_sums_.terms, "losses of term {} in a loss of {} terms", term,
              loss_sums_.terms);
  const Tensor own = arena_->allocate(DType::f64, {2}, "sum of losses");
  if (losses.count() > 0)
    ops::tree_sum(stream_, losses, own.slice(0, 1));
  else
    ops::zero(stream_, own.slice(0, 1));
  ops::count_targets(stream_, {.unmasked = targets.unmasked,
                               .lengths = targets.lengths,
                               .number = targets.number,
                               .count = own.slice(1, 1)});
  const bool shared = sequence().alone || shares_rows();
  if (rows == LossRows::shared && shared && tensor_.size() > 1)
    tensor_.communicator->all_reduce(own.data, 2, own.dtype, ReduceOp::sum, tensor_.order);
  if (!adds_losses()) return;
  const std::int64_t at = static_cast<std::int64_t>(term) * loss_sums_.stride;
  ops::add_losses(stream_, {.own = own,
                            .sum = {loss_sums_.sums + at, DType::f64, {1}},
                            .count = {loss_sums_.counts + at, DType::f64, {1}}});
}

void Pass::postpone(Postponed entry) {
  entry.sequence = static_cast<int>(current_);
  postponed_.push_back(std::move(entry));
}

void Pass::begin_gradients(int bucket) {
  if (postpone_) return postpone({Postponed::Kind::begin_gradients, piece_, bucket, {}, 0});
  if (hooks_) hooks_->begin_gradients(bucket);
}

void Pass::weight_gradient(WeightGradient work) {
  if (!postpone_) return work.run(*this, work.module, work.input, work.d_output);
  postpone({Postponed::Kind::weight_gradient, piece_, -1, std::move(work), 0});
}

void Pass::gradients_ready(int bucket) {
  if (postpone_) return postpone({Postponed::Kind::gradients_ready, piece_, bucket, {}, 0});
  if (hooks_) hooks_->gradients_ready(bucket);
}

void Pass::run_weight_gradients(int piece) {
  CHOIR_CHECK(next_postponed_ < postponed_.size(), "no weight gradient of piece {} waits", piece);
  CHOIR_CHECK(postponed_[next_postponed_].piece == piece,
              "weight gradients of piece {} wait before those of piece {}",
              postponed_[next_postponed_].piece, piece);
  for (; next_postponed_ < postponed_.size(); ++next_postponed_) {
    Postponed& entry = postponed_[next_postponed_];
    if (entry.piece != piece) return;
    if (hooks_ && entry.kind == Postponed::Kind::begin_gradients)
      hooks_->begin_gradients(entry.bucket);
    if (hooks_ && entry.kind == Postponed::Kind::gradients_ready)
      hooks_->gradients_ready(entry.bucket);
    if (entry.kind == Postponed::Kind::weight_gradient) {
      // The tensors of the work are released after it has run.
      const WeightGradient work = std::exchange(entry.work, {});
      const On on(*this, entry.sequence);
      work.run(*this, work.module, work.input, work.d_output);
    }
  }
  postponed_.clear();
  next_postponed_ = 0;
}

SideGradient::SideGradient(Pass& pass, Parameter* parameter, Frozen frozen)
    : parameter_(parameter && parameter->trainable ? parameter : nullptr) {
  const bool discards = parameter && !parameter_ && frozen == Frozen::discarded;
  if (!discards && !(parameter_ && pass.postpones_weight_gradients())) return;
  own_ = pass.allocate_statistic(parameter->local, "small gradient");
  ops::zero(pass.stream(), own_);
}

TensorView SideGradient::view() const {
  if (!parameter_ && own_.empty()) return {};
  return own_.empty() ? parameter_->gradient : static_cast<const TensorView&>(own_);
}

void SideGradient::finish(Pass& pass) {
  if (parameter_ && !own_.empty())
    pass.weight_gradient({&SideGradient::add, parameter_, std::move(own_), {}});
}

void SideGradient::add(Pass& pass, void* parameter, const Tensor& sums, const Tensor&) {
  const TensorView& total = static_cast<Parameter*>(parameter)->gradient;
  ops::add(pass.stream(), total, sums, total);
}

}  // namespace choir
