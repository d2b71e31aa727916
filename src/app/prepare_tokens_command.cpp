// choir prepare tokens DIR --tokenizer FILE [--name NAME] [--on-bad stop|skip]
#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "choir/app/prepare_commands.hpp"
#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/data/speech/corpus_labels.hpp"

namespace choir {
namespace {

struct Request {
  Arguments folders;
  std::string tokenizer, name, on_bad = "stop";
};

void make_tokens(const Request& request) {
  const OnBad on_bad = on_bad_of(request.on_bad, "--on-bad");
  const TextUnits units = TextUnits::load(request.tokenizer);
  const std::string name = request.name.empty()
                               ? std::filesystem::path(request.tokenizer).stem().string()
                               : request.name;
  for (const std::string& folder : request.folders)
    fmt::print("{}\n", write_labels(folder, units, name, on_bad).to_string());
}

}  // namespace

void add_prepare_tokens(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<Request>();
  CommandLine app = prepare.add_subcommand("tokens", "token ids of the texts of packed audio");
  app.add_option("folders", request->folders, "what `choir prepare audio` wrote").required();
  app.add_option("--tokenizer", request->tokenizer,
                 "what `choir prepare tokenizer` wrote, or a .model of SentencePiece")
      .required();
  app.add_option("--name", request->name,
                 "of the labels, labels.NAME.bin; default: of the tokenizer's file");
  app.add_option("--on-bad", request->on_bad,
                 "texts with characters outside the vocabulary: stop, or skip at most 1 %");
  app.callback([request, &chosen] {
    chosen = [request] {
      return with_mpi([&](MpiSession& session) {
        const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
        choose_threads(mesh->node());
        together(mesh->world(), [&] {
          if (session.rank() == 0) make_tokens(*request);
        });
        return 0;
      });
    };
  });
}

}  // namespace choir
