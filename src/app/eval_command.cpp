// choir eval CHECKPOINT [key.path=value ...]
#include <fmt/core.h>

#include <cmath>

#include "choir/app/session.hpp"
#include "choir/core/clock.hpp"
#include "choir/train/run_data.hpp"

namespace choir {
namespace {

int evaluate(MpiSession& session, const std::string& path, const std::string& precision, int tensor,
             const Arguments& overrides) {
  Workplace place;
  place.mesh = inference_mesh(session, tensor);
  choose_threads(place.mesh->node());
  Logger log(session.rank() == 0);
  log.to_stdout();
  constexpr std::int64_t kRows = 8;
  LoadedModel loaded = load_model(path, precision, kRows, place, overrides);
  const auto data = open_data(loaded.deck, kRows, *place.mesh, log,
                              loaded.tokenizer ? loaded.tokenizer->hash() : 0);
  if (!data->has_validation())
    throw DataError("there is no validation data", "name some with data.val='[\"FILE\"]'");
  const double start = now_seconds();
  ProgressLine progress(log, "evaluation");
  const double loss = validation_loss(*loaded.instance, *data, *place.mesh, &progress);
  log.plain(fmt::format(
      "checkpoint={} step={} val_loss={:.6f} perplexity={:.4f} tokens={} seconds={:.2f}",
      loaded.checkpoint.path, loaded.checkpoint.manifest.step, loss, std::exp(loss),
      data->val_tokens() - 1, now_seconds() - start));
  return 0;
}

}  // namespace

int eval_command(const Arguments& arguments) {
  CLI::App app("Mean loss of a checkpoint on its validation data, or on other data.", "choir eval");
  std::string checkpoint, precision;
  Arguments overrides;
  int tensor = 1;
  app.add_option("checkpoint", checkpoint, "checkpoint or run directory")->required();
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
