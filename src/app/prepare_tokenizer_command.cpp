// choir prepare tokenizer FILE... --out NAME --type char|bpe|unigram --vocab-size V
#include <fmt/core.h>

#include <filesystem>
#include <memory>

#include "choir/app/prepare_commands.hpp"
#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "choir/data/speech/corpus_texts.hpp"
#include "choir/data/text/text_units.hpp"

namespace choir {
namespace {

struct Request {
  Arguments paths;
  std::string out;
  UnitTraining training;
};

/// "NAME.json", and for SentencePiece "NAME.model" for its own tools.
void make_tokenizer(const Request& request) {
  const std::vector<std::string> texts = read_corpus_texts(request.paths);
  const TextUnits units = train_text_units(request.training, texts);
  std::string stem = request.out;
  if (stem.ends_with(".json")) stem.resize(stem.size() - 5);
  const auto folder = std::filesystem::path(stem).parent_path();
  std::error_code failure;
  if (!folder.empty()) std::filesystem::create_directories(folder, failure);
  if (failure)
    throw StorageError(fmt::format("cannot create '{}': {}", folder.string(), failure.message()));
  units.save(stem + ".json");
  const bool pieces = units.kind() == "sentencepiece";
  if (pieces) units.save(stem + ".model");

  std::int64_t letters = 0, ids = 0, unwritten = 0;
  for (const std::string& text : texts) {
    const auto encoded = units.encode(text);
    letters += std::ssize(text);
    ids += std::ssize(encoded.ids);
    unwritten += !encoded.unknown.empty();
  }
  fmt::print(
      "texts       {}, {} bytes\nunits       {}, {} entries, hash {:016x}; the blank of CTC "
      "comes on top\n            {:.2f} bytes of text each\n",
      format_count(std::ssize(texts)), format_count(letters), request.training.type,
      units.vocab_size(), units.hash(),
      static_cast<double>(letters) / static_cast<double>(std::max<std::int64_t>(ids, 1)));
  if (unwritten > 0)
    fmt::print("            {} of the texts have characters outside the vocabulary\n",
               format_count(unwritten));
  fmt::print("written     {}.json{}\n", stem, pieces ? ", " + stem + ".model" : "");
}

}  // namespace

void add_prepare_tokenizer(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<Request>();
  CommandLine app = prepare.add_subcommand("tokenizer", "the units of a speech model, of texts");
  app.add_option("paths", request->paths, "text files, NeMo manifests, folders of packed audio")
      .required();
  app.add_option("--out", request->out, "the file to write, without its .json").required();
  app.add_option("--type", request->training.type, "char, bpe or unigram");
  app.add_option("--vocab-size", request->training.vocab_size,
                 "units, without the blank; char: at most so many, 0 for all");
  app.callback([request, &chosen] {
    chosen = [request] {
      return with_mpi([&](MpiSession& session) {
        const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
        together(mesh->world(), [&] {
          if (session.rank() == 0) make_tokenizer(*request);
        });
        return 0;
      });
    };
  });
}

}  // namespace choir
