// choir generate CHECKPOINT --prompt TEXT ...
#include <fmt/core.h>

#include <cstdio>

#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/train/text/generator.hpp"

namespace choir {
namespace {

struct Request {
  std::string checkpoint, prompt = "\n", precision, device = "auto";
  std::int64_t tokens = 200;
  TokenChoice choice{.temperature = 0.8};
  int tensor = 1;
};

int generate(MpiSession& session, const Request& request) {
  Workplace place;
  place.mesh = inference_mesh(session, request.tensor);
  Communicator& world = place.mesh->world();
  choose_threads(place.mesh->node());
  const LoadedModel loaded =
      load_model(request.checkpoint, request.precision, 0, place, {"device=" + request.device});
  // Ranks other than those of the first layers helped to verify the checkpoint; text is written by
  // one. Where parameters are sharded, all walk through the model with it and fail alike.
  const bool all_walk = loaded.instance->storage().sharding().values_sharded();
  together(world, [&] {
    if (place.mesh->coordinates()[Axis::data] != 0 && !all_walk) return;
    const bool writes = session.rank() == 0;
    if (!loaded.tokenizer)
      throw DataError(
          "the checkpoint has no vocabulary: it was trained on token files without vocab.json",
          "text can be generated only from models with a tokenizer");
    const Tokenizer& tokenizer = *loaded.tokenizer;
    const auto prompt = tokenizer.encode(request.prompt, "--prompt");
    if (prompt.empty()) throw DataError("the prompt is empty", "give at least one character");
    if (writes) fmt::print("{}", request.prompt);
    Generator(*loaded.instance)
        .generate(prompt, request.tokens, request.choice, [&](std::int32_t token) {
          if (!writes) return;
          const std::string piece = tokenizer.decode({&token, 1});
          std::fwrite(piece.data(), 1, piece.size(), stdout);
          std::fflush(stdout);
        });
    if (writes) fmt::print("\n");
  });
  return 0;
}

}  // namespace

int generate_command(const Arguments& arguments) {
  CommandLine app(
      "Continues a prompt. CHECKPOINT is a checkpoint, or a run directory (its newest).",
      "choir generate");
  Request request;
  app.add_option("checkpoint", request.checkpoint, "checkpoint or run directory").required();
  app.add_option("--prompt", request.prompt, "the text to continue");
  app.add_option("--tokens", request.tokens, "how many tokens to add").within(1, 1 << 30);
  app.add_option("--temperature", request.choice.temperature, "0: always the likeliest")
      .within(0.0, 100.0);
  app.add_option("--top-k", request.choice.top_k, "of the k likeliest; 0: all").within(0, 1 << 30);
  app.add_option("--top-p", request.choice.top_p,
                 "of the likeliest that have probability p together")
      .within(0.0, 1.0);
  app.add_option("--seed", request.choice.seed, "another seed, another text");
  app.add_option("--device", request.device, "auto, cpu or cuda").shows_default();
  app.add_option("--precision", request.precision,
                 "fp32, bf16-mixed, fp16-mixed; default: as trained");
  add_tensor_option(app, request.tensor);
  if (const auto code = parse(app, arguments)) return *code;
  return with_mpi([&](MpiSession& session) { return generate(session, request); });
}

}  // namespace choir
