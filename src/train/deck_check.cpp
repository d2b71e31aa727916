#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "choir/ops/attention.hpp"
#include "deck_tables.hpp"

namespace choir {
namespace {

/// The divisors of n next to `wish`: "3 or 4", or one where there is only one.
std::string divisors_around(std::int64_t n, std::int64_t wish) {
  std::int64_t below = 0, above = 0;
  for (std::int64_t d = std::min(wish, n); d >= 1 && below == 0; --d)
    if (n % d == 0) below = d;
  for (std::int64_t d = wish; d <= n && above == 0; ++d)
    if (n % d == 0) above = d;
  if (below == 0 || above == 0 || below == above) return std::to_string(below + above);
  return fmt::format("{} or {}", below, above);
}

std::string multiples_around(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below == 0 ? std::to_string(unit) : fmt::format("{} or {}", below, below + unit);
}

/// The fewest heads that divide n_embd and are not too wide.
std::int64_t heads_from(const GptConfig& gpt) {
  std::int64_t heads = (gpt.n_embd + ops::kWidestHead - 1) / ops::kWidestHead;
  while (gpt.n_embd % heads != 0) ++heads;
  return heads;
}

std::int64_t ffn_width_of(const GptConfig& gpt) {
  return gpt.ffn_width == 0 ? default_ffn_width(gpt) : gpt.ffn_width;
}

/// Each rank has heads of keys and values of its own, or several share one.
bool divides_kv_heads(const GptConfig& gpt, std::int64_t ranks) {
  const std::int64_t heads = gpt.n_kv_head == 0 ? gpt.n_head : gpt.n_kv_head;
  return heads % ranks == 0 || ranks % heads == 0;
}

/// The sizes of parallel.tensor next to `wish` that this model allows.
std::string tensor_sizes_around(const GptConfig& gpt, std::int64_t wish) {
  std::int64_t below = 1, above = 0;
  for (std::int64_t t = 1; t <= kMostTensorRanks; ++t) {
    if (gpt.n_head % t != 0 || !divides_kv_heads(gpt, t) || ffn_width_of(gpt) % t != 0) continue;
    if (t < wish) below = t;
    if (t > wish && above == 0) above = t;
  }
  return above == 0 ? std::to_string(below) : fmt::format("{} or {}", below, above);
}

class Checks {
 public:
  explicit Checks(const Deck& deck) : deck_(deck) {}

  void add(std::vector<std::string> keys, std::string text) {
    problems_.push_back({std::move(keys), std::move(text)});
  }

  void batch() {
    const TrainSection& train = deck_.train;
    const std::vector<std::string> keys{"train.micro_batch_size", "train.global_batch_size",
                                        "train.grad_accum"};
    constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;
    if (train.micro_batch_size >= kMostTokens / deck_.model.gpt.block_size)
      add({"train.micro_batch_size", "model.block_size"},
          fmt::format("train.micro_batch_size = {} x model.block_size = {} is too much for one "
                      "pass; legal: fewer than {} tokens",
                      train.micro_batch_size, deck_.model.gpt.block_size, kMostTokens));
    try {  // what no number of ranks could mend
      if ((train.micro_batch_size > 0) + (train.grad_accum > 0) + (train.global_batch_size > 0) < 2)
        resolve_batch_sizes(train.micro_batch_size, train.grad_accum, train.global_batch_size, 1);
      if (train.micro_batch_size > 0 && train.global_batch_size > 0)
        resolve_batch_sizes(train.micro_batch_size, 0, train.global_batch_size, 1);
      if (train.grad_accum > 0 && train.global_batch_size > 0)
        resolve_batch_sizes(0, train.grad_accum, train.global_batch_size, 1);
    } catch (const DeckError& error) {
      add(keys, fmt::format("{}; {}", error.what(), error.hint()));
    }
  }

  void data() {
    const DataSection& data = deck_.data;
    const bool synthetic = data.format == "synthetic";
    if (!synthetic && data.train.empty())
      add({"data.train"},
          "data.train is not given: name files or folders, or set data.format = "
          "\"synthetic\" for random tokens");
    if (synthetic && !(data.train.empty() && data.val.empty()))
      add({"data.train", "data.val", "data.format"},
          "data.format = \"synthetic\" reads nothing, but data.train or data.val name files; "
          "remove one");
    if (synthetic && deck_.model.gpt.vocab_size == 0)
      add({"model.vocab_size", "data.format"},
          "data.format = \"synthetic\" needs model.vocab_size, for example 50257");
    if (data.readers_every > 0 && data.reader != "scatter")
      add({"data.readers_every", "data.reader"},
          fmt::format("data.readers_every = {} is for data.reader = \"scatter\", not \"{}\"",
                      data.readers_every, data.reader));
  }

  void schedule() {
    const OptimizerSection& optimizer = deck_.optimizer;
    if (optimizer.min_lr > optimizer.learning_rate)
      add({"optimizer.min_lr", "optimizer.learning_rate"},
          fmt::format(
              "optimizer.min_lr = {} is above optimizer.learning_rate = {}; legal: 0 <= min_lr "
              "<= {}",
              optimizer.min_lr, optimizer.learning_rate, optimizer.learning_rate));
    if (optimizer.decay_steps > 0 && optimizer.warmup_steps > optimizer.decay_steps)
      add({"optimizer.warmup_steps", "optimizer.decay_steps"},
          fmt::format(
              "optimizer.warmup_steps = {} is above optimizer.decay_steps = {}; nearest legal: {}",
              optimizer.warmup_steps, optimizer.decay_steps, optimizer.decay_steps));
    const std::int64_t last = profile_range(deck_.train.profile).last;
    if (last > deck_.train.max_steps)
      add({"train.profile", "train.max_steps"},
          fmt::format("train.profile ends at step {}, after train.max_steps = {}", last,
                      deck_.train.max_steps));
    const RunSection& run = deck_.run;
    if (run.walltime > 0 && run.walltime_margin >= run.walltime)
      add({"run.walltime", "run.walltime_margin"},
          fmt::format("run.walltime = {} leaves no time to train: run.walltime_margin is {}",
                      format_hms(run.walltime), format_hms(run.walltime_margin)));
  }

  void device() {
    const std::string& transport = deck_.parallel.transport;
    if (deck_.device == "cuda" && deck_.train.precision == "fp64")
      add({"device", "train.precision"},
          "device = \"cuda\" does not compute in train.precision = \"fp64\", which stays on the "
          "CPU; set device = \"cpu\", or another precision");
    if (deck_.device == "cpu" && (transport == "nccl" || transport == "staged"))
      add({"parallel.transport", "device"},
          fmt::format("parallel.transport = \"{}\" is for memory of GPUs, not for device = "
                      "\"cpu\"; legal there: auto, mpi, node",
                      transport));
    if (deck_.device == "cpu" && deck_.parallel.share_device)
      add({"parallel.share_device", "device"},
          "parallel.share_device is for device = \"cuda\", not \"cpu\"; remove one");
  }

  void precision() {
    const TrainSection defaults;
    const TrainSection& train = deck_.train;
    const bool fp16 = train.precision == "fp16-mixed";
    if (train.loss_scale != defaults.loss_scale && !fp16)
      add({"train.loss_scale", "train.precision"},
          fmt::format("train.loss_scale = {} is for train.precision = \"fp16-mixed\", not \"{}\": "
                      "the others have the range of fp32",
                      train.loss_scale, train.precision));
    if (train.loss_scale_window != defaults.loss_scale_window && (!fp16 || train.loss_scale > 0))
      add({"train.loss_scale_window", "train.loss_scale", "train.precision"},
          fmt::format("train.loss_scale_window = {} is for train.precision = \"fp16-mixed\" with "
                      "train.loss_scale = \"dynamic\"",
                      train.loss_scale_window));
  }

  void tensor() {
    const std::int64_t t = deck_.parallel.tensor;
    const GptConfig& gpt = deck_.model.gpt;
    if (deck_.parallel.sequence && t == 1)
      add({"parallel.sequence", "parallel.tensor"},
          "parallel.sequence = true divides tokens among tensor ranks, but parallel.tensor = 1; "
          "nearest legal: sequence = false, or tensor = 2");
    if (t == 1) return;
    for (KeyProblem& problem : check_tensor_size(gpt, t))
      add(std::move(problem.keys), std::move(problem.text));
    // Sums of halves have no MPI type, and random rounding follows the layout of one rank.
    const std::string& precision = deck_.train.precision;
    if (precision == "fp16-mixed" || precision == "bf16-true")
      add({"train.precision", "parallel.tensor"},
          fmt::format("train.precision = \"{}\" is not yet supported with parallel.tensor = {}; "
                      "legal now: fp64, fp32, bf16-mixed",
                      precision, t));
  }

  void zero() {
    const ParallelSection defaults;
    const ParallelSection& parallel = deck_.parallel;
    if (parallel.zero_group != defaults.zero_group && parallel.zero == 0)
      add({"parallel.zero_group", "parallel.zero"},
          fmt::format("parallel.zero_group = \"{}\" is for parallel.zero = 1, 2 or 3: with 0 every "
                      "rank has everything",
                      parallel.zero_group));
    if (parallel.zero_prefetch != defaults.zero_prefetch && parallel.zero != 3)
      add({"parallel.zero_prefetch", "parallel.zero"},
          fmt::format("parallel.zero_prefetch = {} is for parallel.zero = 3, not {}: the others "
                      "gather nothing ahead of its use",
                      parallel.zero_prefetch, parallel.zero));
  }

  void faults() {
    const FaultSection& fault = deck_.fault;
    const auto pair = [&](const char* name, std::int64_t rank, std::int64_t step) {
      if ((rank < 0) == (step < 0)) return;
      const std::string key = fmt::format("fault.{}", name);
      add({key + "_rank", key + "_step"}, fmt::format("{0}_rank and {0}_step go together", key));
    };
    pair("hang", fault.hang_rank, fault.hang_step);
    pair("throw", fault.throw_rank, fault.throw_step);
    // The rank alone goes with kill_in_save.
    if (fault.kill_step >= 0 || fault.kill_in_save.empty())
      pair("kill", fault.kill_rank, fault.kill_step);
  }

  std::vector<KeyProblem> take() { return std::move(problems_); }

 private:
  const Deck& deck_;
  std::vector<KeyProblem> problems_;
};

}  // namespace

std::int64_t default_ffn_width(const GptConfig& gpt) {
  if (gpt.activation != ops::Activation::swiglu) return 4 * gpt.n_embd;
  return (8 * gpt.n_embd + 3 * 64 - 1) / (3 * 64) * 64;
}

std::vector<KeyProblem> check_model(const GptConfig& gpt) {
  std::vector<KeyProblem> problems;
  if (gpt.n_embd % gpt.n_head != 0) {
    problems.push_back(
        {{"model.n_embd", "model.n_head"},
         fmt::format(
             "model.n_embd = {} is not a multiple of model.n_head = {}; nearest legal: n_embd = "
             "{}, or n_head = {}",
             gpt.n_embd, gpt.n_head, multiples_around(gpt.n_embd, gpt.n_head),
             divisors_around(gpt.n_embd, gpt.n_head))});
  } else if (gpt.head_width() > ops::kWidestHead) {
    problems.push_back(
        {{"model.n_embd", "model.n_head"},
         fmt::format("a head is model.n_embd / model.n_head = {} wide, at most {} is supported; "
                     "nearest legal: n_head = {}",
                     gpt.head_width(), ops::kWidestHead, heads_from(gpt))});
  } else if (gpt.position == Position::rope && gpt.head_width() % 2 != 0) {
    problems.push_back(
        {{"model.n_embd", "model.n_head", "model.position"},
         fmt::format(
             "model.position = \"rope\" rotates pairs, but a head is model.n_embd / model.n_head = "
             "{} wide; nearest legal: n_embd = {}",
             gpt.head_width(), multiples_around(gpt.n_embd, 2 * gpt.n_head))});
  }
  if (gpt.n_kv_head != 0 && gpt.n_head % gpt.n_kv_head != 0)
    problems.push_back(
        {{"model.n_kv_head", "model.n_head"},
         fmt::format("model.n_kv_head = {} does not divide model.n_head = {}; nearest legal: {}",
                     gpt.n_kv_head, gpt.n_head, divisors_around(gpt.n_head, gpt.n_kv_head))});
  return problems;
}

std::vector<KeyProblem> check_tensor_size(const GptConfig& gpt, std::int64_t t) {
  std::vector<KeyProblem> problems;
  const std::string legal = tensor_sizes_around(gpt, t);
  const auto divides = [&](const char* key, std::int64_t value) {
    if (value % t == 0) return true;
    problems.push_back(
        {{std::string("model.") + key, "parallel.tensor"},
         fmt::format("model.{} = {} cannot be divided among parallel.tensor = {} ranks; nearest "
                     "legal: {} = {}, or tensor = {}",
                     key, value, t, key, multiples_around(value, t), legal)});
    return false;
  };
  if (divides("n_head", gpt.n_head) && !divides_kv_heads(gpt, t))
    problems.push_back({{"model.n_kv_head", "parallel.tensor"},
                        fmt::format("model.n_kv_head = {} is neither a multiple nor a divisor of "
                                    "parallel.tensor = {}; nearest legal: tensor = {}",
                                    gpt.n_kv_head, t, legal)});
  divides("ffn_width", ffn_width_of(gpt));
  return problems;
}

std::vector<KeyProblem> deck::check(const Deck& deck) {
  Checks checks(deck);
  for (KeyProblem& problem : check_model(deck.model.gpt))
    checks.add(std::move(problem.keys), std::move(problem.text));
  checks.batch();
  checks.data();
  checks.schedule();
  checks.precision();
  checks.tensor();
  checks.zero();
  checks.device();
  checks.faults();
  return checks.take();
}

}  // namespace choir
