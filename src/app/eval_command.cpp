// choir eval CHECKPOINT [key.path=value ...]
#include <fmt/core.h>

#include "choir/core/log.hpp"
#include "choir/run/training_data.hpp"
#include "src/app/command_line.hpp"
#include "src/core/quantities.hpp"
#include "src/run/loaded_model.hpp"

namespace choir {
namespace {

std::string head_of(const LoadedModel& loaded) {
  return fmt::format("checkpoint={} step={}", loaded.checkpoint.path,
                     loaded.checkpoint.manifest.step);
}

int evaluate(MpiSession& session, const FamilyTable& families, const std::string& path,
             const std::string& precision, int tensor, const Arguments& overrides) {
  Workplace place;
  place.mesh = inference_mesh(session, tensor);
  choose_threads(place.mesh->node());
  Logger log(session.rank() == 0);
  log.to_stdout();
  LoadedModel loaded = open_model(families, path, precision, *place.mesh, overrides);
  const auto data =
      loaded.deck.family().open_evaluation(loaded.deck, loaded.vocabulary, *place.mesh, log);
  load_instance(loaded, data->shapes(), place);
  const double start = now_seconds();
  ProgressLine progress(log, "evaluation");
  const EvaluationData::Result result = data->evaluate(*loaded.instance, &progress);
  for (const std::string& line : result.lines) log.plain(line);
  log.plain(
      fmt::format("{} {} seconds={:.2f}", head_of(loaded), result.metrics, now_seconds() - start));
  return 0;
}

}  // namespace

int eval_command(const Invocation& call) {
  CommandLine app(
      "Evaluates a checkpoint on its validation data, or on other data: the mean loss, and for "
      "speech models the word and character error rates.",
      "choir eval");
  std::string checkpoint, precision;
  Arguments overrides;
  int tensor = 1;
  app.add_option("checkpoint", checkpoint, "checkpoint or run directory").required();
  app.add_option("overrides", overrides,
                 "overrides of the deck, for example data.val='[\"x.tok\"]'");
  app.add_option("--precision", precision, "fp32, bf16-mixed, fp16-mixed; default: as trained");
  add_tensor_option(app, tensor);
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) {
    return evaluate(session, call.families, checkpoint, precision, tensor, overrides);
  });
}

}  // namespace choir
