#include "src/app/loaded_codec.hpp"

#include "choir/comm/agreement.hpp"
#include "choir/train/step/run_setup.hpp"

namespace choir {

std::unique_ptr<LoadedCodec> load_codec(MpiSession& session, const std::string& path,
                                        const std::string& device, const std::string& precision) {
  auto loaded = std::make_unique<LoadedCodec>();
  loaded->place.mesh = inference_mesh(session, 1);
  loaded->model =
      open_model(path, precision, *loaded->place.mesh,
                 {"device=" + device, "parallel.tensor=1", "parallel.pipeline=1",
                  "parallel.virtual_stages=1", "parallel.schedule=1f1b", "parallel.data=auto",
                  "parallel.sequence=false", "parallel.zero=0"});
  std::size_t arena_bytes = 0;
  together(loaded->place.mesh->world(), [&] {
    if (loaded->model.deck.family().name() != "codec")
      throw DeckError(path + " holds no codec", "name a run of model.type = \"codec\"");
    arena_bytes = plan_codec(inference_options(loaded->model));
  });
  open_device(loaded->place, loaded->model.deck);
  make_instance(loaded->model, arena_bytes, loaded->place);
  loaded->coder = std::make_unique<CodecCoder>(*loaded->model.instance);
  return loaded;
}

}  // namespace choir
