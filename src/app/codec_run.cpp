#include "src/app/codec_run.hpp"

#include "src/comm/agreement.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

void add_codec_run(CommandLine& app, CodecRunRequest& request) {
  app.add_option("codec", request.checkpoint, "run directory or checkpoint of a codec").required();
  add_ema_option(app, request.ema);
  app.add_option("--device", request.device, "auto, cpu or cuda").shows_default();
  app.add_option("--precision", request.precision, "fp32 or fp64; default: as trained");
}

CodecRun::CodecRun(MpiSession& session, const CodecRunRequest& request) {
  place_.mesh = inference_mesh(session, 1);
  choose_threads(place_.mesh->node());
  // The layout of the training does not apply to inference.
  loaded_ = open_model(
      request.families, request.checkpoint, request.precision, *place_.mesh,
      with_ema({"device=" + request.device, "parallel.tensor=1", "parallel.pipeline=1",
                "parallel.virtual_stages=1", "parallel.schedule=1f1b", "parallel.context=1",
                "parallel.data=auto", "parallel.sequence=false", "parallel.zero=0"},
               request.ema));
  std::size_t arena = 0;
  together(world(), [&] { arena = plan_codec(inference_options(loaded_)); });
  open_device(place_, loaded_.deck);
  make_instance(loaded_, arena, place_);
  together(world(), [&] { coder_ = std::make_unique<CodecCoder>(*loaded_.instance); });
}

}  // namespace choir
