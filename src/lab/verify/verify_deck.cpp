// Preparation of a deck for `choir verify`.
#include "choir/lab/verify/verify.hpp"
#include "src/lab/verify/laid_out_run.hpp"

namespace choir {
namespace {

/// The vocabulary size of decks that take it from the data: a prime, so that it does not divide
/// evenly among ranks.
constexpr int kStandInVocabulary = 97;

/// A key that is legal only in another precision or on another device, and the value that means
/// "not". None of them changes results except by rounding.
struct OfOtherRuns {
  const char *key, *plain;
  bool precision;  ///< the key belongs to another precision; false: to another device
};
constexpr OfOtherRuns kOfOtherRuns[] = {
    {"train.loss_scale", "dynamic", true},      {"train.loss_scale_window", "2000", true},
    {"train.frozen_precision", "master", true}, {"train.time_products", "false", false},
    {"parallel.share_device", "false", false},  {"parallel.transport", "auto", false}};

void leave_out(const Deck& deck, const std::string& precision, std::vector<std::string>& changes,
               std::vector<std::string>& notes) {
  const std::string& transport = deck.parallel.transport;
  for (const OfOtherRuns& each : kOfOtherRuns) {
    const std::string key = each.key;
    if (!deck.given(key) || (each.precision ? precision == deck.train.precision
                                            : precision != "fp64" || deck.device == "cpu"))
      continue;
    if (key == "parallel.transport" && transport != "nccl" && transport != "staged") continue;
    changes.push_back(fmt::format("{}={}", key, each.plain));
    notes.push_back(fmt::format("{} is ignored: the runs are in {}{}", key, precision,
                                each.precision ? "" : " on the CPU"));
  }
}

}  // namespace

Deck verify_deck(const Deck& deck, const std::string& precision, std::vector<std::string>& notes) {
  std::vector<KeyProblem> problems;
  std::vector<std::string> changes{"train.precision=" + precision};
  if (precision == "fp64") changes.push_back("device=cpu");
  leave_out(deck, precision, changes, notes);
  Deck result = vary_deck(deck, changes, problems);
  throw_problems(problems, deck.source);
  if (result.optimizer.scale_lr != "none") {
    notes.push_back(
        fmt::format("optimizer.scale_lr = \"{}\" is ignored: with learning rates that depend on "
                    "the layout, layouts train differently",
                    result.optimizer.scale_lr));
    result.optimizer.scale_lr = "none";
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

}  // namespace choir
