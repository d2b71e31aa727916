#include "choir/train/verify.hpp"

#include <algorithm>
#include <exception>

#include "choir/comm/agreement.hpp"
#include "choir/comm/gather_text.hpp"
#include "choir/comm/leading_group.hpp"
#include "choir/comm/mpi_session.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/text.hpp"
#include "choir/train/deck_layout.hpp"
#include "choir/train/run_setup.hpp"
#include "choir/train/step_planner.hpp"
#include "choir/train/verify_speech.hpp"
#include "choir/train/verify_tokens.hpp"

namespace choir {
namespace {

/// Where the vocabulary would come from the data: a prime, so that it divides among no ranks.
constexpr int kStandInVocabulary = 97;

Deck laid_out(const Deck& deck, const VerifyLayout& layout) {
  std::vector<KeyProblem> problems;
  Deck result = lay_out(deck, layout, problems);
  throw_problems(problems, deck.source);
  return result;
}

/// An engine on this rank of a mesh, and its data.
class LaidOutRun {
 public:
  LaidOutRun(const Deck& deck, Workplace& place, NegativeControl control)
      : data_ranks_(place.mesh->layout().size(Axis::data)),
        data_rank_(place.mesh->coordinates()[Axis::data]),
        micro_batches_(deck.train.micro_batches),
        options_(options_of(deck, data_ranks_, control)),
        batches_(batches_for(options_)),
        plan_(plan_step(options_, place.mesh->layout(), place.mesh->rank(),
                        place.mesh->node().size(), false, place.device.get())),
        engine_(with_requests(options_, plan_), *place.device, *place.mesh, plan_.arena_bytes),
        throws_(control == NegativeControl::throws_everywhere ||
                (control == NegativeControl::throws_alone &&
                 place.mesh->rank() + 1 == place.mesh->world().size())) {
    engine_.instance().initialise(options_.seed);
  }

  Engine& engine() { return engine_; }

  StepResult step(std::int64_t step) {
    if (throws_) throw NumericError("thrown on purpose", "leave out --break");
    engine_.step(
        step, [&](std::int64_t j) { return micro_batch(step, j); }, valid_tokens(step), clock_);
    return engine_.finish(clock_);
  }

 private:
  static EngineOptions options_of(const Deck& deck, int data_ranks, NegativeControl control) {
    Deck copy = deck;
    EngineOptions options = engine_options(deck, resolve_batch(copy, data_ranks));
    options.control = control;
    options.lag = 0;
    options.shapes = batches_for(options)->shapes();
    return options;
  }
  static EngineOptions with_requests(EngineOptions options, const StepPlan& plan) {
    options.arena_requests = plan.arena_requests;
    return options;
  }
  static std::unique_ptr<VerifyBatches> batches_for(const EngineOptions& options) {
    if (options.model.is_speech())
      return std::make_unique<VerifySpeech>(options.seed, options.model.fastconformer());
    const GptConfig& gpt = options.model.gpt();
    return std::make_unique<VerifyTokens>(options.seed, options.micro_batch_size, gpt.block_size,
                                          gpt.vocab_size);
  }
  /// Of a step on all ranks, those without work included.
  std::int64_t places() const { return options_.micro_batches * data_ranks_; }
  /// That count.
  std::int64_t micro_batches() const { return micro_batches_ > 0 ? micro_batches_ : places(); }
  /// What they count for, if a rule is broken.
  std::int64_t empty_ones() const {
    return options_.control == NegativeControl::empty_counted ? places() - micro_batches() : 0;
  }
  /// Of this rank's j-th; -1: none is left for it.
  std::int64_t index_of(std::int64_t step, std::int64_t j) const {
    std::int64_t place = engine_.micro_batch_index(0, j);
    if (options_.control == NegativeControl::batch_off) place = data_rank_ + j;
    return place < micro_batches() ? step * micro_batches() + place : -1;
  }
  ModelBatch micro_batch(std::int64_t step, std::int64_t j) {
    const std::int64_t index = index_of(step, j);
    if (index < 0) return batches_->padding();
    ModelBatch batch = batches_->micro_batch(index);
    if (options_.control == NegativeControl::ids_by_position && !batch.sample_ids.empty())
      for (std::int64_t row = 0; row < batch.samples; ++row)
        batch.sample_ids.as<std::int64_t>()[row] -=
            (index - step * micro_batches() - j) * VerifySpeech::kMostRows;
    return batch;
  }
  /// Of the global batch.
  double valid_tokens(std::int64_t step) const {
    if (options_.control != NegativeControl::mean_of_means)
      return static_cast<double>(batches_->targets(step * micro_batches(), micro_batches()) +
                                 empty_ones());
    std::int64_t mine = 0;
    for (std::int64_t j = 0; j < options_.micro_batches; ++j)
      if (const std::int64_t index = index_of(step, j); index >= 0)
        mine += batches_->targets(index, 1);
    return static_cast<double>(mine * data_ranks_);
  }

  int data_ranks_, data_rank_;
  std::int64_t micro_batches_;  // 0: what the layout makes of them
  EngineOptions options_;
  std::unique_ptr<VerifyBatches> batches_;
  StepPlan plan_;
  Engine engine_;
  bool throws_;
  PhaseClock clock_;
};

/// What a place is made for.
std::string key_of(const VerifyLayout& layout, const Deck& deck) {
  const Layout ranks = layout_of(deck, layout.ranks());
  return fmt::format("{} {} {}", ranks.to_string(), ranks.order(), deck.device);
}

/// A row is a line.
std::string one_line(const std::string& text) {
  std::string line;
  for (const std::string& part : split(text, '\n')) {
    if (!line.empty()) line += ' ';
    line += trim(part);
  }
  return line;
}

/// By the largest of each quantity.
ByQuantity<double> largest(const RunRecord& reference, const RunDistance& distance) {
  ByQuantity<double> most{};
  for (const double d : distance.losses) most[Quantity::loss] = std::max(most[Quantity::loss], d);
  for (const double d : distance.norms)
    most[Quantity::gradient_norm] = std::max(most[Quantity::gradient_norm], d);
  for (std::size_t i = 0; i < distance.tensors.size(); ++i) {
    double& of_quantity = most[quantity_of(reference.tensors[i])];
    of_quantity = std::max(of_quantity, distance.tensors[i]);
  }
  return most;
}

}  // namespace

Deck verify_deck(const Deck& deck, const std::string& precision, std::vector<std::string>& notes) {
  std::vector<KeyProblem> problems;
  std::vector<std::string> changes{"train.precision=" + precision};
  if (precision == "fp64") changes.push_back("device=cpu");
  Deck result = vary_deck(deck, changes, problems);
  throw_problems(problems, deck.source);
  if (result.optimizer.scale_lr != "none") {
    notes.push_back(
        fmt::format("optimizer.scale_lr = \"{}\" is left out: learning rates that "
                    "depend on the layout cannot train the same",
                    result.optimizer.scale_lr));
    result.optimizer.scale_lr = "none";
  }
  if (result.model.gpt.vocab_size == 0) {
    notes.push_back(fmt::format("model.vocab_size would come from the data; {} stands in for it",
                                kStandInVocabulary));
    result.model.gpt.vocab_size = kStandInVocabulary;
  }
  TrainSection& train = result.train;
  if (result.model.speech()) {
    laid_out(result, VerifyLayout());  // what one rank cannot do is refused now
    return result;
  }
  const BatchSizes batch =
      resolve_batch_sizes(train.micro_batch_size, train.grad_accum, train.global_batch_size, 1);
  train.micro_batch_size = static_cast<int>(batch.micro);
  train.global_batch_size = static_cast<int>(batch.global);
  train.grad_accum = 0;
  for (const char* key : {"train.micro_batch_size", "train.global_batch_size", "train.grad_accum"})
    result.origins.erase(key);
  laid_out(result, VerifyLayout());  // what one rank cannot do is refused now
  return result;
}

struct Verifier::Place {
  std::string key;
  Workplace work;
};

Verifier::Verifier(const Deck& deck, const VerifyOptions& options, Communicator& world)
    : deck_(deck),
      options_(options),
      world_(&world),
      leading_(static_cast<std::size_t>(world.size()) + 1),
      watchdog_({.timeout_seconds = deck.parallel.timeout,
                 .rank = world.rank(),
                 .host = host_name(),
                 .on_timeout = {}}) {}

Verifier::~Verifier() = default;

Communicator* Verifier::leading(int ranks) {
  auto& group = leading_[static_cast<std::size_t>(ranks)];
  if (!group) group = make_leading_group(*world_, ranks);  // nullptr where this rank is not in it
  return group->get();
}

// A place is left by all its ranks together, also by those that the next one does without.
void Verifier::leave_place(const VerifyLayout& layout, const Deck& deck) {
  if (place_ && place_->key != key_of(layout, deck)) place_.reset();
}

// Collective over the ranks of the layout.
Workplace& Verifier::place_for(const VerifyLayout& layout, const Deck& deck) {
  if (place_) return place_->work;
  place_ = std::make_unique<Place>();
  place_->key = key_of(layout, deck);
  place_->work.mesh =
      Mesh::over(*leading(layout.ranks()), layout_of(deck, layout.ranks()), transport_of(deck));
  open_device(place_->work, deck);
  return place_->work;
}

// Only rank 0 works, and the others must not spin meanwhile.
RunRecord Verifier::record(const Deck& deck) {
  RunRecord record;
  const Deck laid = laid_out(deck, VerifyLayout());
  leave_place(VerifyLayout(), laid);
  leading(1);
  std::exception_ptr error;
  try {
    if (world_->rank() == 0) {
      LaidOutRun run(laid, place_for(VerifyLayout(), laid), NegativeControl::none);
      for (int step = 0; step < options_.steps; ++step) {
        watchdog_.beat(fmt::format("one rank: step {}", step + 1));
        const StepResult result = run.step(step);
        if (!result.updated)
          throw NumericError(fmt::format("one rank: loss {} and gradient norm {} in step {}",
                                         result.loss, result.grad_norm, step + 1),
                             "lower optimizer.learning_rate");
        record.losses.push_back(result.loss);
        record.norms.push_back(result.grad_norm);
      }
      record.take(run.engine());
    }
  } catch (...) {
    error = std::current_exception();
  }
  watchdog_.rest();
  quiet_barrier(*world_);
  together(*world_, [&] {
    if (error) std::rethrow_exception(error);
  });
  return record;
}

// A layout and the run of one rank both lie about as far from the run in fp64 as that of one rank
// does, so they may be twice that apart; and twice this, as both are maxima of few samples. A loss
// can be near by chance: nothing is held to less than the rounding of one number.
void Verifier::run_reference() {
  reference_ = record(deck_);
  const DType compute = precision_of(deck_.train.precision).compute;
  tolerances_.fill(1e-12);
  if (compute != DType::f64) {
    std::vector<KeyProblem> problems;
    const Deck exact = vary_deck(deck_, {"train.precision=fp64", "device=cpu"}, problems);
    throw_problems(problems, deck_.source);
    const RunRecord truth = record(exact);
    place_.reset();
    constexpr double kMargin = 4;
    const double rounding = compute == DType::f32    ? 0x1p-24
                            : compute == DType::bf16 ? 0x1p-9
                                                     : 0x1p-12;
    if (world_->rank() == 0) {
      tolerances_ = largest(truth, distance_of(truth, reference_));
      for (double& tolerance : tolerances_) tolerance = std::max(kMargin * tolerance, rounding);
    }
    world_->broadcast(tolerances_.data(), sizeof tolerances_, 0);
  }
  reference_.share(*world_);
}

VerifyRow Verifier::run(const VerifyLayout& layout) {
  VerifyRow row{.layout = layout};
  const Deck laid = laid_out(deck_, layout);
  leave_place(layout, laid);
  const bool works = leading(layout.ranks()) != nullptr;
  RunDistance distance(reference_);
  std::string failure;
  const double start = now_seconds();
  {
    std::unique_ptr<LaidOutRun> run;  // lives until all are here: it ends collectively
    try {
      if (works) {
        const std::string name = layout.to_string();
        watchdog_.beat(name + ": start");
        run = std::make_unique<LaidOutRun>(laid, place_for(layout, laid), options_.control);
        for (std::size_t step = 0; step < reference_.losses.size(); ++step) {
          watchdog_.beat(fmt::format("{}: step {}", name, step + 1));
          distance.add_step(reference_, step, run->step(static_cast<std::int64_t>(step)));
        }
        distance.add_tensors(reference_, held_tensors(run->engine()), owned_tensors(run->engine()));
      }
    } catch (const std::exception& error) {
      failure = one_line(describe(error));
    }
    wait_for_all(layout, failure);
  }
  row.seconds = now_seconds() - start;
  int failed = failure.empty() ? 0 : 1;
  world_->all_reduce(&failed, 1, DType::i32, ReduceOp::max);
  if (failed != 0) {
    place_.reset();  // of a broken communicator nothing may be used again
    for (const std::string& text : gather_texts(*world_, failure))
      if (row.failure.empty() && !text.empty()) row.failure = text;
    return row;
  }
  distance.combine(*world_);
  judge(distance, row);
  return row;
}

// Where all ranks failed, all come here. One that failed alone has left the others in the middle of
// something: it gives them a moment, and ends the job with the cause.
void Verifier::wait_for_all(const VerifyLayout& layout, const std::string& failure) {
  const double moment = std::min(10.0, deck_.parallel.timeout);
  watchdog_.rest();
  const double arrived = now_seconds();
  quiet_barrier(*world_, [&] {
    if (failure.empty() || now_seconds() - arrived < moment) return;
    throw CommError(fmt::format("{}: this rank failed alone: {}", layout.to_string(), failure));
  });
}

void Verifier::judge(const RunDistance& distance, VerifyRow& row) const {
  double worst = -1;
  const auto see = [&](Quantity quantity, double error, const std::string& where) {
    const double used = error / tolerances_[quantity];
    if (used <= worst) return;
    worst = used;
    row.error = error, row.tolerance = tolerances_[quantity], row.where = where;
  };
  for (std::size_t s = 0; s < distance.losses.size(); ++s) {
    see(Quantity::loss, distance.losses[s], fmt::format("loss of step {}", s + 1));
    see(Quantity::gradient_norm, distance.norms[s], fmt::format("gradient norm of step {}", s + 1));
  }
  for (std::size_t i = 0; i < distance.tensors.size(); ++i)
    see(quantity_of(reference_.tensors[i]), distance.tensors[i], reference_.tensors[i].name);
  const std::vector<std::string> untiled = distance.badly_tiled(reference_);
  if (!untiled.empty())
    row.failure = fmt::format("{} of {} tensors are not owned exactly once, such as {}",
                              untiled.size(), distance.tensors.size(), untiled.front());
}

}  // namespace choir
