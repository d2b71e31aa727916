// choir eval CHECKPOINT [key.path=value ...]
#include <fmt/core.h>

#include <cmath>

#include "choir/app/session.hpp"
#include "choir/core/clock.hpp"
#include "choir/train/speech/speech_scores.hpp"
#include "choir/train/text/token_data.hpp"

namespace choir {
namespace {

std::string head_of(const LoadedModel& loaded) {
  return fmt::format("checkpoint={} step={}", loaded.checkpoint.path,
                     loaded.checkpoint.manifest.step);
}

int evaluate_text(LoadedModel& loaded, Workplace& place, Logger& log) {
  constexpr std::int64_t kRows = 8;
  load_instance(loaded, {token_shape(loaded.deck.model.gpt, kRows)}, true, place);
  const auto data = open_data(loaded.deck, kRows, *place.mesh, log,
                              loaded.tokenizer ? loaded.tokenizer->hash() : 0);
  if (!data->has_validation())
    throw DataError("there is no validation data", "name some with data.val='[\"FILE\"]'");
  const double start = now_seconds();
  ProgressLine progress(log, "evaluation");
  const double loss = validation_loss(*loaded.instance, *data, *place.mesh, &progress);
  log.plain(fmt::format("{} val_loss={:.6f} perplexity={:.4f} tokens={} seconds={:.2f}",
                        head_of(loaded), loss, std::exp(loss), data->val_tokens() - 1,
                        now_seconds() - start));
  return 0;
}

int evaluate_speech(LoadedModel& loaded, Workplace& place, Logger& log) {
  constexpr std::size_t kPairs = 3;
  SpeechData data =
      open_speech(loaded.deck, *place.mesh, false, loaded.units ? loaded.units->hash() : 0);
  if (loaded.units) data.units = *loaded.units;
  load_instance(loaded, largest_shapes(data.set->eval_shapes()), false, place);
  const double start = now_seconds();
  ProgressLine progress(log, "evaluation");
  const std::vector<SetScores> sets = score_sets(*loaded.instance, data, kPairs, &progress);
  const std::string pairs = to_string(sets.front().pairs);
  if (!pairs.empty()) log.plain(pairs + "\n");
  for (const std::string& line : lines_of(sets)) log.plain(line);
  std::string line = head_of(loaded);
  for (const Validation& v : validations_of(sets)) {
    const std::string behind = v.name.empty() ? "" : "/" + v.name;
    line += fmt::format(" val_loss{}={:.6f}", behind, v.loss);
    for (const auto& [name, value] : v.metrics)
      line += fmt::format(" val_{}{}={:.6f}", name, behind, value);
  }
  log.plain(fmt::format("{} seconds={:.2f}", line, now_seconds() - start));
  return 0;
}

int evaluate(MpiSession& session, const std::string& path, const std::string& precision, int tensor,
             const Arguments& overrides) {
  Workplace place;
  place.mesh = inference_mesh(session, tensor);
  choose_threads(place.mesh->node());
  Logger log(session.rank() == 0);
  log.to_stdout();
  LoadedModel loaded = open_model(path, precision, *place.mesh, overrides);
  return loaded.deck.model.speech() ? evaluate_speech(loaded, place, log)
                                    : evaluate_text(loaded, place, log);
}

}  // namespace

int eval_command(const Arguments& arguments) {
  CommandLine app(
      "Mean loss of a checkpoint on its validation data, or on other data; of speech models also "
      "the "
      "error rates of words and characters.",
      "choir eval");
  std::string checkpoint, precision;
  Arguments overrides;
  int tensor = 1;
  app.add_option("checkpoint", checkpoint, "checkpoint or run directory").required();
  app.add_option("overrides", overrides,
                 "key.path=value of the deck, for example data.val='[\"x.tok\"]'");
  app.add_option("--precision", precision, "fp32, bf16-mixed, fp16-mixed; default: as trained");
  add_tensor_option(app, tensor);
  if (const auto code = parse(app, arguments)) return *code;
  return with_mpi([&](MpiSession& session) {
    return evaluate(session, checkpoint, precision, tensor, overrides);
  });
}

}  // namespace choir
