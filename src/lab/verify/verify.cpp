// Preparation of a deck for `choir verify`, the comparison of its layouts, and the report.

#include "src/lab/verify/verify.hpp"

#include <algorithm>
#include <cmath>
#include <exception>

#include "choir/deck/deck.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/core/json_value.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/lab/bench/bench_step.hpp"
#include "src/lab/verify/laid_out_run.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

/// The vocabulary size of decks that take it from the data: a prime, so that it does not divide
/// evenly among ranks.
constexpr int kStandInVocabulary = 97;

/// A key that is legal only in other runs, and the value that means "not". None of them changes
/// results except by rounding.
struct OfOtherRuns {
  enum class Kind { precision, below_fp64, device };
  const char *key, *plain;
  Kind kind;  ///< the key belongs to another precision, to all but fp64, or to another device
};
using Kind = OfOtherRuns::Kind;
constexpr OfOtherRuns kOfOtherRuns[] = {{"train.loss_scale", "dynamic", Kind::precision},
                                        {"train.loss_scale_window", "2000", Kind::precision},
                                        {"train.frozen_precision", "master", Kind::precision},
                                        {"optimizer.moment_precision", "fp32", Kind::below_fp64},
                                        {"train.time_products", "false", Kind::device},
                                        {"parallel.share_device", "false", Kind::device},
                                        {"parallel.free_sms", "auto", Kind::device},
                                        {"parallel.transport", "auto", Kind::device}};

/// True if the key of a deck remains in runs in `wanted`.
bool stays(const OfOtherRuns& each, const Deck& deck, TrainPrecision wanted) {
  const bool quantised = each.key == std::string_view("train.frozen_precision") &&
                         deck.train.frozen_precision != FrozenPrecision::bf16;
  if (each.kind == Kind::precision) return quantised || wanted == deck.train.precision;
  if (wanted != TrainPrecision::fp64) return true;
  return each.kind == Kind::device ? deck.device == RequestedDevice::cpu
                                   : deck.train.precision == TrainPrecision::fp64;
}

void leave_out(const Deck& deck, TrainPrecision wanted, std::vector<std::string>& changes,
               std::vector<std::string>& notes) {
  const bool gpu_transport = needs_gpu(deck.parallel.transport);
  for (const OfOtherRuns& each : kOfOtherRuns) {
    const std::string key = each.key;
    if (!deck.given(key) || stays(each, deck, wanted)) continue;
    if (key == "parallel.transport" && !gpu_transport) continue;
    changes.push_back(fmt::format("{}={}", key, each.plain));
    notes.push_back(fmt::format("{} is ignored: the runs are in {}{}", key, name_of(wanted),
                                each.kind == Kind::device ? " on the CPU" : ""));
  }
}

}  // namespace

Deck verify_deck(const Deck& deck, TrainPrecision precision, std::vector<std::string>& notes) {
  std::vector<KeyProblem> problems;
  std::vector<std::string> changes{fmt::format("train.precision={}", name_of(precision))};
  if (precision == TrainPrecision::fp64) changes.push_back("device=cpu");
  leave_out(deck, precision, changes, notes);
  Deck result = vary_deck(deck, changes, problems);
  throw_problems(problems, deck.source);
  if (result.optimizer.scale_lr != RateScaling::none) {
    notes.push_back(
        fmt::format("optimizer.scale_lr = \"{}\" is ignored: with learning rates that depend on "
                    "the layout, layouts train differently",
                    name_of(result.optimizer.scale_lr)));
    result.optimizer.scale_lr = RateScaling::none;
  }
  const ModelFamily& family = result.family();
  if (std::int64_t& size = family.vocab_size(result); size == 0) {
    notes.push_back(
        fmt::format("model.vocab_size would come from the data; {} is used", kStandInVocabulary));
    size = kStandInVocabulary;
  }
  TrainSection& train = result.train;
  if (!family.fixed_shape()) {
    laid_out(result, VerifyLayout());  // refuses what one rank cannot do
    return result;
  }
  const BatchSizes batch =
      resolve_batch_sizes(train.micro_batch_size, train.grad_accum, train.global_batch_size, 1);
  train.micro_batch_size = static_cast<int>(batch.micro);
  train.global_batch_size = static_cast<int>(batch.global);
  train.grad_accum = 0;
  for (const char* key : {"train.micro_batch_size", "train.global_batch_size", "train.grad_accum"})
    result.origins.erase(key);
  laid_out(result, VerifyLayout());  // refuses what one rank cannot do
  return result;
}

namespace {

/// The layout and device that a Place is made for.
std::string key_of(const VerifyLayout& layout, const Deck& deck) {
  const Layout ranks = layout_of(deck, layout.ranks());
  return fmt::format("{} {} {}", ranks.to_string(), ranks.order(), name_of(deck.device));
}

/// Joins lines, because a row is one line.
std::string one_line(const std::string& text) {
  std::string line;
  for (const std::string& part : split(text, '\n')) {
    if (!line.empty()) line += ' ';
    line += trim(part);
  }
  return line;
}

/// The largest distance of each quantity.
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
  if (!group) group = make_leading_group(*world_, ranks);  // nullptr if this rank is not in it
  return group->get();
}

// All ranks of a place leave it together, including those that the next layout does not use.
void Verifier::leave_place(const VerifyLayout& layout, const Deck& deck) {
  if (place_ && place_->key != key_of(layout, deck)) place_.reset();
}

// Collective over the ranks of the layout.
Workplace& Verifier::place_for(const VerifyLayout& layout, const Deck& deck) {
  if (place_) return place_->work;
  place_ = std::make_unique<Place>();
  place_->key = key_of(layout, deck);
  place_->work.mesh =
      Mesh::over(*leading(layout.ranks()), layout_of(deck, layout.ranks()), mesh_options_of(deck));
  open_device(place_->work, deck);
  return place_->work;
}

// Only rank 0 works, and the others must not spin in the meantime.
RunRecord Verifier::record(const Deck& deck, std::uint64_t last_places) {
  RunRecord record;
  const Deck laid = laid_out(deck, VerifyLayout());
  leave_place(VerifyLayout(), laid);
  leading(1);
  std::exception_ptr error;
  try {
    if (world_->rank() == 0) {
      LaidOutRun run(laid, place_for(VerifyLayout(), laid));
      if (last_places > 0) move_last_places(run.engine().instance(), last_places);
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

// A layout and the run of one rank are both about as far from the run in fp64 as runs of one rank
// are, so their distance may be twice that; and twice again, because both are maxima of few
// samples. One run can be close by chance, above all in a quantity that is a single number of each
// step, so there are further runs. In fp32 they start from weights perturbed in their last places.
// In 16 bits one unit in the last place is as large as all the rounding of a run, so the further
// runs have other seeds, and each is compared with its own run in fp64. No tolerance is below the
// rounding of one number.
void Verifier::run_reference() {
  reference_ = record(deck_);
  const DType compute = precision_of(name_of(deck_.train.precision)).compute;
  tolerances_.fill(1e-12);
  if (compute != DType::f64) {
    const bool leads = world_->rank() == 0;
    const auto exact = [&](const Deck& deck) {
      std::vector<std::string> notes;
      return record(verify_deck(deck, TrainPrecision::fp64, notes));
    };
    const auto widen = [&](const RunRecord& truth, const RunRecord& run) {
      place_.reset();
      if (!leads) return;
      const ByQuantity<double> distance = largest(truth, distance_of(truth, run));
      std::transform(distance.begin(), distance.end(), tolerances_.begin(), tolerances_.begin(),
                     [](double a, double b) { return std::max(a, b); });
    };
    const RunRecord truth = exact(deck_);
    widen(truth, reference_);
    constexpr int kFurtherRuns = 3;
    for (int further = 1; further <= kFurtherRuns; ++further) {
      if (compute == DType::f32) {
        widen(truth, record(deck_, static_cast<std::uint64_t>(further)));
        continue;
      }
      Deck seeded = deck_;
      seeded.run.seed += further;
      const RunRecord seeded_truth = exact(seeded);
      widen(seeded_truth, record(seeded));
    }
    constexpr double kMargin = 4;
    const double rounding = compute == DType::f32    ? 0x1p-24
                            : compute == DType::bf16 ? 0x1p-9
                                                     : 0x1p-12;
    for (double& tolerance : tolerances_) tolerance = std::max(kMargin * tolerance, rounding);
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
    // Lives until all ranks are here, because its destructor is collective.
    std::unique_ptr<LaidOutRun> run;
    try {
      if (works) {
        const std::string name = layout.to_string();
        watchdog_.beat(name + ": start");
        run = std::make_unique<LaidOutRun>(laid, place_for(layout, laid));
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
    place_.reset();  // a broken communicator must not be used again
    for (const std::string& text : gather_texts(*world_, failure))
      if (row.failure.empty() && !text.empty()) row.failure = text;
    return row;
  }
  distance.combine(*world_);
  judge(distance, row);
  return row;
}

// If all ranks failed, all arrive here. A rank that failed alone has left the others in the middle
// of a step: it waits for them a moment, then ends the job with the cause.
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

namespace {

std::string describe_batch(const Deck& deck) {
  if (!deck.family().fixed_shape())
    return fmt::format("{} micro-batches of random utterances a step, of unequal length and number",
                       deck.train.micro_batches);
  return fmt::format("{} sequences of random tokens a step, some of their targets ignored",
                     deck.train.global_batch_size);
}

std::string describe_tolerances(const Deck& deck, const ByQuantity<double>& tolerances) {
  std::string text;
  for (int q = 0; q < kQuantities; ++q) {
    const auto quantity = static_cast<Quantity>(q);
    text += fmt::format("{}{} {:.2g}", q == 0 ? "" : ", ", name_of(quantity), tolerances[quantity]);
  }
  const std::string measure =
      "max|a-b| relative to max(1, max|a|); for gradients and moments relative to max|a|, but at "
      "least 1/1000 of the largest of their kind";
  if (deck.train.precision == TrainPrecision::fp64) return text + "\n           " + measure;
  return text + "\n           " + measure +
         fmt::format(
             "\n           4 x the distance of one rank in {} from one rank in fp64, at least the "
             "rounding of one number",
             name_of(deck.train.precision));
}

}  // namespace

std::string verify_header(const Deck& deck, const VerifyOptions& options, int ranks,
                          const std::string& layouts, const std::vector<std::string>& notes,
                          const ByQuantity<double>& tolerances) {
  const ModelConfig model = model_of(deck);
  std::string text = fmt::format(
      "verify     {}: every layout against one rank\n"
      "model      {}\n"
      "batch      {}\n"
      "steps      {}\n"
      "precision  {}\n"
      "tolerance  {}\n"
      "layouts    {}, on up to {} rank{}",
      deck.source, model.family().describe(model), describe_batch(deck), options.steps,
      name_of(deck.train.precision), describe_tolerances(deck, tolerances), layouts, ranks,
      plural(ranks));
  for (const std::string& note : notes) text += "\nnote       " + note;
  return text;
}

std::string to_string(const VerifyRow& row, std::size_t width) {
  const std::string text = row.failure.empty() ? fmt::format("{:8.1e} of {:.1e} in {}", row.error,
                                                             row.tolerance, row.where)
                                               : row.failure;
  return fmt::format("{:<{}}  {:<72}  {:6.2f} s  {}", row.layout.to_string(), width, text,
                     row.seconds, row.ok() ? "ok" : "FAIL");
}

std::string to_json(const VerifyRow& row) {
  nlohmann::ordered_json json;
  json["layout"] = row.layout.to_string();
  json["ranks"] = row.layout.ranks();
  // JSON has no infinity.
  json["error"] = std::isfinite(row.error) ? nlohmann::ordered_json(row.error) : nullptr;
  json["tolerance"] = row.tolerance;
  json["where"] = row.where;
  json["failure"] = row.failure;
  json["seconds"] = row.seconds;
  json["ok"] = row.ok();
  return dumped(json);
}

bool valid(const std::vector<VerifyRow>& rows) {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const VerifyRow& row) { return row.ok(); });
}

std::string verdict(const std::vector<VerifyRow>& rows) {
  double seconds = 0;
  const VerifyRow* worst = nullptr;
  for (const VerifyRow& row : rows) {
    seconds += row.seconds;
    if (row.failure.empty() &&
        (worst == nullptr || row.error / row.tolerance > worst->error / worst->tolerance))
      worst = &row;
  }
  const auto failed =
      std::count_if(rows.begin(), rows.end(), [](const VerifyRow& row) { return !row.ok(); });
  const std::string count =
      failed == 0
          ? fmt::format("VALID: {} {} as one rank does",
                        counted(static_cast<std::int64_t>(rows.size()), "layout"),
                        rows.size() == 1 ? "trains" : "train")
          : fmt::format("INVALID: {} of {} layouts differ from one rank", failed, rows.size());
  return count +
         (worst ? fmt::format(", largest error {:.1e} of {:.1e}", worst->error, worst->tolerance)
                : std::string()) +
         fmt::format(", {}", format_duration(seconds));
}

}  // namespace choir
