#include "choir/app/speech_session.hpp"

#include "choir/app/stream_transcription.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/train/engine/run_setup.hpp"

namespace choir {
namespace {

/// The layout it was trained in is not that it is used in.
Arguments overrides_of(const SpeechModelRequest& request) {
  return {"device=" + request.device, fmt::format("parallel.tensor={}", request.tensor),
          "parallel.pipeline=1",      "parallel.virtual_stages=1",
          "parallel.schedule=1f1b",   "parallel.data=auto",
          "parallel.sequence=false"};
}

void require_units(const LoadedModel& loaded) {
  const std::string& path = loaded.checkpoint.path;
  if (!loaded.units)
    throw DataError(path + " has no units of text: it was trained without a tokenizer",
                    "train with data whose labels `choir prepare tokens` made");
  const std::int64_t symbols = loaded.deck.model.gpt.vocab_size;
  if (loaded.units->vocab_size() != symbols)
    throw DataError(fmt::format("{}: its model has {} units of text, its tokenizer {}", path,
                                symbols, loaded.units->vocab_size()),
                    "the checkpoint was put together from two");
}

}  // namespace

LoadedSpeechModel load_speech_model(const SpeechModelRequest& request, Workplace& place) {
  Mesh& mesh = *place.mesh;
  LoadedSpeechModel loaded{
      open_model(request.checkpoint, request.precision, mesh, overrides_of(request))};
  if (!loaded.deck.model.speech())
    throw DeckError(
        loaded.checkpoint.path +
            " holds a language model (model.type = \"gpt\"), which hears nothing",
        "use a checkpoint of model.type = \"fastconformer\"; `choir generate` continues text");
  together(mesh.world(), [&] {
    require_units(loaded);
    if (request.stream)
      require_streaming(inference_options(loaded).model.fastconformer(), loaded.checkpoint.path);
  });
  open_device(place, loaded.deck);
  // Every rank cuts recordings alike, whatever its machine has.
  double budget = request.transcription.memory > 0
                      ? request.transcription.memory
                      : default_transcription_memory(*place.device, mesh.node().size());
  mesh.world().all_reduce(&budget, 1, DType::f64, ReduceOp::min);
  if (request.stream) {
    together(mesh.world(), [&] {
      loaded.stream = plan_stream(inference_options(loaded), mesh.layout(), mesh.rank(), budget,
                                  place.device.get());
    });
    make_instance(loaded, loaded.stream.arena_bytes, place);
    loaded.instance->arena().set_requests(loaded.stream.requests);
    return loaded;
  }
  together(mesh.world(), [&] {
    loaded.plan = plan_transcription(inference_options(loaded), mesh.layout(), mesh.rank(),
                                     request.transcription, budget, place.device.get());
  });
  require_equal(mesh.world(), static_cast<std::uint64_t>(loaded.plan.windows.frames),
                "windows that recordings are cut into");
  make_instance(loaded, loaded.plan.arena_bytes, place);
  return loaded;
}

}  // namespace choir
