// choir prepare text|chat|audio|manifest|tokenizer|tokens, and the command itself.

#include "src/app/prepare_command.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/folder_manifest.hpp"
#include "src/data/audio/prepare_audio.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/chat/prepare_chat.hpp"
#include "src/data/corpora/corpus_preparation.hpp"
#include "src/data/text/prepare_text.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/gpt/chat_deck.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

namespace {

struct TextRequest {
  Arguments paths;
  std::string out, tokenizer = "char";
  std::int64_t vocab_size = 0;
  bool overwrite = false;
  PrepareOptions options;
};

/// Keeps the request for the folder, and refuses to replace the data of another one.
void keep_request(TextRequest& request) {
  std::error_code ignored;
  const auto whole = [&](const std::string& path) {
    return std::filesystem::absolute(path, ignored).lexically_normal().string();
  };
  nlohmann::ordered_json json;
  json["sources"] = nlohmann::ordered_json::array();
  for (const std::string& path : request.paths) json["sources"].push_back(whole(path));
  json["text_field"] = request.options.field;
  json["tokenizer"] = std::filesystem::exists(request.tokenizer, ignored) ? whole(request.tokenizer)
                                                                          : request.tokenizer;
  json["vocab_size"] = request.vocab_size;
  json["train_fraction"] = request.options.train_fraction;
  json["tokens_per_shard"] = request.options.tokens_per_shard;
  request.options.request = dumped_safely(json);
  if (!request.overwrite) require_same_request(request.out, request.options.request);
}

void refuse_vocab_size(const TextRequest& request) {
  if (request.vocab_size != 0)
    throw DeckError(fmt::format("--vocab-size with --tokenizer {}", request.tokenizer),
                    "--vocab-size is only for --tokenizer bpe, which is trained on the text");
}

/// Prepares text with the tokens of a tokenizer file, or of a byte-pair encoding that all ranks
/// train together.
int prepare_pieces(MpiSession& session, TextRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  together(mesh->world(), [&] { keep_request(request); });
  std::optional<Vocabulary> vocabulary;
  if (request.tokenizer == "bpe") {
    together(mesh->world(), [&] {
      if (request.vocab_size == 0)
        throw DeckError("--tokenizer bpe needs the number of tokens",
                        "add --vocab-size, for example --vocab-size 8192");
    });
    vocabulary =
        train_text_bpe(mesh->world(), request.paths, request.vocab_size, request.options.field);
  } else {
    together(mesh->world(), [&] {
      refuse_vocab_size(request);
      vocabulary = Vocabulary::load(request.tokenizer);
    });
  }
  PrepareOptions options = request.options;
  options.vocabulary = &*vocabulary;
  const auto summary = prepare_text(request.paths, request.out, options, &mesh->world());
  if (session.rank() == 0) print_safely("{}\n", summary.to_string());
  return 0;
}

void add_prepare_text(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<TextRequest>();
  CommandLine app =
      prepare.add_subcommand("text", "prepare UTF-8 text: token files and a vocabulary");
  app.add_option(
         "paths", request->paths,
         "files, or folders (read recursively, sorted): plain text, JSON lines (.jsonl, also "
         ".gz and .zst), Parquet, and tars of .txt and .json")
      .required();
  app.add_option("--text-field", request->options.field,
                 "field of JSON lines, or column of Parquet, that holds the text")
      .shows_default();
  app.add_option("--out", request->out, "folder to write").required();
  app.add_option("--tokenizer", request->tokenizer,
                 "char, byte, bpe (trained on the text, with --vocab-size), a tokenizer.json, a "
                 "SentencePiece "
                 ".model, or a folder with one of them")
      .shows_default();
  app.add_option("--vocab-size", request->vocab_size, "number of tokens of bpe")
      .within(257, 1 << 24);
  app.add_option("--train-fraction", request->options.train_fraction,
                 "fraction of the text for training; the rest is for validation")
      .within(0.0, 1.0);
  app.add_option("--tokens-per-shard", request->options.tokens_per_shard, "tokens per file");
  app.add_flag("--overwrite", request->overwrite,
               "replace prepared data of other files or options in --out");
  choose(app, chosen, [request] {
    const std::string& tokenizer = request->tokenizer;
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(tokenizer, ignored);
    if (tokenizer == "bpe" || folder || tokenizer.find('.') != std::string::npos ||
        tokenizer.find('/') != std::string::npos)
      return with_mpi([&](MpiSession& session) { return prepare_pieces(session, *request); });
    return without_mpi([&] {
      refuse_vocab_size(*request);
      request->options.tokenizer = vocabulary_kind_of(tokenizer);
      keep_request(*request);
      print_safely("{}\n",
                   prepare_text(request->paths, request->out, request->options).to_string());
      return 0;
    });
  });
}

struct ChatRequest {
  Arguments files;
  std::string out, run, encoder;
  std::int64_t show = 0;
  std::int64_t tokens = 0;  ///< of the model of `run`
  double held_out = 0;
  PrepareChatOptions options;
  const FamilyTable* families = nullptr;
};

/// Prepares the conversations, or those of them for training and for validation, and with --for
/// writes a deck.
int write_chat(MpiSession& session, Mesh& mesh, const std::string& folder,
               const ChatRequest& request) {
  Logger log(session.rank() == 0);
  log.to_stdout();
  // A request that is refused, even at its end, changes neither folder.
  const std::string held = request.held_out > 0 ? folder + "_held" : "";
  std::optional<ChatFolderUndo> undo, undo_held;
  together(mesh.world(), [&] {
    if (session.rank() != 0) return;
    undo.emplace(folder);
    if (!held.empty()) undo_held.emplace(held);
  });
  std::string edited;  // the deck of an earlier call, which the user may have changed
  together(mesh.world(), [&] {
    if (std::ifstream(folder + "/deck.json"))
      edited = read_capped_file(folder + "/deck.json", 1).text;
  });
  PrepareChatOptions options = request.options;
  if (request.held_out > 0) options.held_out = std::llround(1 / request.held_out);
  const auto made = prepare_chat(mesh.world(), log, request.files, folder, options);
  std::string text = made.to_string();
  if (!held.empty()) {
    options.held = true;
    const auto kept = prepare_chat(mesh.world(), log, request.files, held, options);
    text += fmt::format("\nheld out      {}, for validation, in {}",
                        counted(kept.conversations, "conversation"), held);
  }
  if (!request.run.empty())
    together(mesh.world(), [&] {
      if (session.rank() != 0) return;
      const ChatDeck deck = chat_deck({.families = request.families,
                                       .run = request.run,
                                       .tokens = request.tokens,
                                       .encoder = request.encoder,
                                       .folder = folder,
                                       .held = held,
                                       .size = {.conversations = made.conversations,
                                                .tokens = made.tokens,
                                                .longest = made.longest,
                                                .seconds = made.seconds,
                                                .vocab_size = made.vocab_size}});
      const std::string path = folder + "/deck.json";
      if (!edited.empty() && edited != deck.text) {
        const std::string before = folder + "/deck.before.json";
        write_whole_file(before, edited);
        text += fmt::format("\nkept          {}: the deck that was there is another one", before);
      }
      write_whole_file(path, deck.text);
      text += fmt::format("\nfine-tuning   {}\ntrain with    choir train {}/deck.json",
                          deck.summary, folder);
    });
  if (undo) undo->keep();
  if (undo_held) undo_held->keep();
  if (session.rank() == 0) print_safely("{}\n", text);
  return 0;
}

int make_chat(MpiSession& session, ChatRequest request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  std::string folder = request.out;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  together(mesh->world(), [&] {
    if (request.run.empty() && !request.encoder.empty())
      throw DeckError("--encoder is only for --for RUN, which writes a deck", "add --for RUN");
    if (!request.run.empty())
      require_chat_runs(
          {.families = request.families, .run = request.run, .encoder = request.encoder});
    if (!request.run.empty() && request.options.tokenizer.empty())
      request.options.tokenizer = tokenizer_of_run(request.run);
    if (folder.empty() && request.show == 0)
      throw DeckError("nothing to do", "give --out FOLDER, or --show N to print conversations");
  });
  if (!request.run.empty()) {
    CheckpointTokens found = tokens_of_checkpoint(request.run, mesh->world());
    request.tokens = found.tokens;
    together(mesh->world(), [&] {
      if (!request.options.tokenizer.empty()) return;
      if (found.tokenizer.empty())
        throw DeckError(
            fmt::format("'{}' has no tokenizer, neither in a folder nor in its checkpoint",
                        request.run),
            "name a run of `choir import`, or give the tokenizer with --tokenizer");
      request.options.stored = std::move(found.tokenizer);
      request.options.tokenizer = request.run;
    });
  }
  if (request.options.tokenizer.empty()) request.options.tokenizer = "byte";
  together(mesh->world(), [&] {
    if (session.rank() != 0 || request.show == 0) return;
    const bool colour = ::isatty(STDOUT_FILENO) != 0;
    // The text is already printable, and the colours must be kept.
    fmt::print("{}", show_chat(request.files, request.show, request.options,
                               colour ? "\x1b[32m" : "[[", colour ? "\x1b[0m" : "]]"));
  });
  return folder.empty() ? 0 : write_chat(session, *mesh, folder, request);
}

void add_prepare_chat(CommandLine& prepare, PrepareAction& chosen, const FamilyTable& families) {
  const auto request = std::make_shared<ChatRequest>();
  request->families = &families;
  request->options.tokenizer.clear();
  CommandLine app = prepare.add_subcommand(
      "chat",
      "prepare conversations (JSON lines, with or without audio) for fine-tuning on answers");
  app.add_option("files", request->files,
                 "JSON lines with messages, conversations (from, value; also with audio), prompt "
                 "and completion, or instruction, input and output; or Lhotse cuts")
      .required();
  app.add_option("--out", request->out, "folder to write");
  app.add_option("--show", request->show,
                 "number of conversations to print, with the trained text between [[ and ]], or "
                 "green on a terminal");
  app.add_option("--tokenizer", request->options.tokenizer,
                 "a tokenizer.json, vocab.json, a SentencePiece .model, or byte; default: that of "
                 "the run of --for, else byte");
  app.add_option("--for", request->run,
                 "run of a language model, for example of `choir import`: also write a deck that "
                 "fine-tunes it on these conversations with LoRA, with rows, batches, steps and "
                 "learning rate chosen for them");
  app.add_option("--encoder", request->encoder,
                 "with --for and conversations about recordings: run of a recogniser whose encoder "
                 "hears them; the deck is that of a model with audio input (salm)");
  app.add_option("--held-out", request->held_out,
                 "fraction of the conversations that is prepared for validation, in OUT_held")
      .within(0.0, 0.5);
  app.add_option(
      "--template", request->options.chat_template,
      fmt::format(
          "own (chat_template.jinja or tokenizer_config.json beside the tokenizer), {}; "
          "default: own if there is one, else detected from the tokenizer's control tokens, "
          "else plain",
          kChatTemplates));
  app.add_option("--system", request->options.system,
                 "system prompt for conversations without one; default: that of the template");
  app.add_option("--context", request->options.context,
                 "the user's turn for Lhotse cuts, instead of their text");
  app.add_option("--max-tokens", request->options.max_tokens,
                 "leave out conversations with more tokens; 0: no limit");
  app.add_option("--sample-rate", request->options.sample_rate, "sample rate of audio in Hz")
      .shows_default();
  app.add_option("--tars", request->options.tars,
                 "tars with the audio of tarred NeMo conversations (audio__OP_0..N_CL_.tar), once "
                 "for each file (chat__OP_0..N_CL_.jsonl)");
  choose(app, chosen, [request] {
    return with_mpi([&](MpiSession& session) { return make_chat(session, *request); });
  });
}

struct AudioRequest {
  Arguments manifests;
  std::string out, channel, on_bad = "stop";
  PrepareAudioOptions options;
};

int make_audio(MpiSession& session, const AudioRequest& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::automatic);
  PrepareAudioOptions options = request.options;
  std::string folder = request.out;
  together(mesh->world(), [&] {
    options.channel = channel_choice_of(request.channel);
    options.stop_on_bad = request.on_bad == "stop";
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  });
  Logger log(session.rank() == 0);
  log.to_stdout();
  const auto summary = prepare_audio(mesh->world(), log, request.manifests, folder, options);
  if (session.rank() == 0) print_safely("{}\n", summary.to_string());
  return 0;
}

void add_prepare_audio(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<AudioRequest>();
  CommandLine app = prepare.add_subcommand(
      "audio", "pack the audio of speech manifests (NeMo, Lhotse); the ranks share the work");
  app.add_option("manifests", request->manifests,
                 "NeMo JSON lines (also tarred: manifest__OP_0..N_CL_.json), Lhotse cuts (JSON "
                 "lines, .gz), Lhotse Shar folders")
      .required();
  app.add_option("--out", request->out, "folder to write; an interrupted run is continued")
      .required();
  app.add_option("--sample-rate", request->options.sample_rate,
                 "sample rate in Hz; other audio is resampled")
      .shows_default();
  app.add_option(
      "--channel", request->channel,
      "channel of audio with several, if the manifest names none: average, or a number from 0");
  app.add_flag("--trim-to-supervisions", request->options.manifest.trim_to_supervisions,
               "create one utterance per supervision instead of one per cut");
  app.add_option("--tars", request->options.manifest.tars,
                 "tars of a tarred NeMo manifest (audio__OP_0..N_CL_.tar), once for each manifest; "
                 "default: the manifest's name with audio and .tar");
  app.add_option("--shard-minutes", request->options.shard_minutes, "minutes of audio per shard")
      .shows_default();
  app.add_option(
         "--on-bad", request->on_bad,
         "stop: refuse bad utterances and name them (exit code 3); skip: leave them out and "
         "list them")
      .one_of({"stop", "skip"})
      .shows_default();
  app.add_option("--bad-cap", request->options.bad_cap,
                 "largest fraction of utterances that skip may leave out")
      .shows_default();
  choose(app, chosen, [request] {
    return with_mpi([&](MpiSession& session) { return make_audio(session, *request); });
  });
}

struct ManifestRequest {
  Arguments folders;
  std::string out, on_bad = "stop";
  bool check_audio = false;
  FolderManifestOptions options;
};

void add_prepare_manifest(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<ManifestRequest>();
  CommandLine app = prepare.add_subcommand(
      "manifest", "make a manifest of recordings and texts, or another form of a manifest");
  app.add_option(
         "paths", request->folders,
         "folders, read recursively: the text of NAME.wav (.flac, .mp3, .ogg ...) is in "
         "NAME.txt, or in a line \"NAME text\" of a file .trans.txt beside it (LibriSpeech); "
         "folders "
         "of Kaldi (wav.scp, text, segments); tables .tsv and .csv with a column of files and one "
         "of "
         "texts (Common Voice, LJSpeech, metadata.csv); Lhotse cuts; or manifests whose lines are "
         "copied, for example with --lower-case")
      .required();
  app.add_option("--out", request->out, "manifest to write (NeMo's JSON lines)").required();
  app.add_flag("--lower-case", request->options.form.lower_case, "write the texts in lower case");
  app.add_flag("--remove-punctuation", request->options.form.without_punctuation,
               "write the texts without punctuation: hyphens and slashes become blanks, and "
               "apostrophes between letters stay");
  app.add_flag("--allow-missing", request->options.untexted,
               "leave out recordings without a text, and lines of lists without a recording");
  app.add_flag("--no-text", request->options.no_texts,
               "write recordings without their texts, for example to transcribe them");
  app.add_flag("--check-audio", request->check_audio,
               "decode all recordings to find damaged ones; default: the first 10 hours of sound, "
               "and only the headers of the rest");
  app.add_option("--on-bad", request->on_bad,
                 "stop: refuse recordings that cannot be read and name them (exit code 3); skip: "
                 "leave them out and name them")
      .one_of({"stop", "skip"})
      .shows_default();
  auto held_out = app.add_option(
      "--held-out", request->options.held_out,
      "fraction of the lines that is written for validation to OUT_held.json instead, for example "
      "0.1; those of one recording stay together");
  held_out.within(0.0, 0.5);
  app.add_option("--held-out-by", request->options.held_out_by,
                 "keep also the lines of one speaker, or of one folder of recordings, together")
      .one_of({"recording", "speaker", "folder"})
      .shows_default()
      .needs(held_out);
  choose(app, chosen, [request] {
    return without_mpi([&] {
      request->options.skip_bad = request->on_bad == "skip";
      if (request->check_audio)
        request->options.checked_hours = std::numeric_limits<double>::infinity();
      print_safely(
          "{}\n",
          write_folder_manifest(request->folders, request->out, request->options).to_string());
      return 0;
    });
  });
}

struct TokenizerRequest {
  Arguments paths;
  std::string out;
  VocabularyTraining training;
};

/// Writes "NAME.json", and for SentencePiece also "NAME.model" for its own tools.
void make_tokenizer(const TokenizerRequest& request) {
  std::string stem = request.out;
  if (stem.ends_with(".json")) stem.resize(stem.size() - 5);
  for (const std::string& path : request.paths)
    if (std::error_code ignored; std::filesystem::equivalent(path, stem + ".json", ignored))
      throw DeckError(fmt::format("--out {} would overwrite its input {}", request.out, path),
                      "give the tokenizer another name");
  const std::vector<std::string> texts = read_corpus_texts(request.paths);
  const Vocabulary vocabulary = train_vocabulary(request.training, texts);
  const auto folder = std::filesystem::path(stem).parent_path();
  std::error_code failure;
  if (!folder.empty()) std::filesystem::create_directories(folder, failure);
  if (failure)
    throw StorageError(fmt::format("cannot create '{}': {}", folder.string(), failure.message()));
  vocabulary.save(stem + ".json");
  const bool pieces = vocabulary.kind() == VocabularyKind::sentencepiece;
  if (pieces) vocabulary.save(stem + ".model");

  std::int64_t letters = 0, ids = 0, unwritten = 0;
  for (const std::string& text : texts) {
    const auto encoded = vocabulary.try_encode(text);
    letters += std::ssize(text);
    ids += std::ssize(encoded.ids);
    unwritten += !encoded.unknown.empty();
  }
  print_safely(
      "texts       {}, {} bytes\nunits       {}, {} entries, hash {:016x}; plus the CTC blank\n    "
      "        {:.2f} bytes of text per unit\n",
      format_count(std::ssize(texts)), format_count(letters), request.training.type,
      vocabulary.size(), vocabulary.hash(),
      static_cast<double>(letters) / static_cast<double>(std::max<std::int64_t>(ids, 1)));
  if (unwritten > 0)
    print_safely("            {} texts have characters outside the vocabulary\n",
                 format_count(unwritten));
  print_safely("written     {}.json{}\n", stem, pieces ? ", " + stem + ".model" : "");
}

void add_prepare_tokenizer(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<TokenizerRequest>();
  CommandLine app =
      prepare.add_subcommand("tokenizer", "train the units of a speech model on texts");
  app.add_option("paths", request->paths, "text files, NeMo manifests, folders of packed audio")
      .required();
  app.add_option("--out", request->out, "file to write, without .json").required();
  app.add_option("--type", request->training.type, "char, bpe or unigram");
  app.add_option("--vocab-size", request->training.vocab_size,
                 "number of units without the blank; char: at most this many, 0 for all");
  choose(app, chosen, [request] {
    return with_mpi([&](MpiSession& session) {
      const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
      together(mesh->world(), [&] {
        if (session.rank() == 0) make_tokenizer(*request);
      });
      return 0;
    });
  });
}

struct TokensRequest {
  Arguments folders;
  std::string tokenizer, name, on_bad = "stop";
};

/// The units of a run or a checkpoint as JSON; "" if the tokenizer is a file or a folder with one.
/// Collective.
std::string units_of_run(const TokensRequest& request, Communicator& world) {
  const std::filesystem::path path(request.tokenizer);
  int run = 0;
  together(world, [&] {
    std::error_code ignored;
    if (world.rank() == 0)
      run =
          std::filesystem::is_directory(path, ignored) &&
          (std::filesystem::exists(path / "checkpoints", ignored) ||
           std::filesystem::exists(path / "manifest.json", ignored) || path.filename() == "latest");
  });
  world.broadcast(&run, sizeof run, 0);
  if (run == 0) return {};
  std::string units = tokens_of_checkpoint(request.tokenizer, world).tokenizer;
  together(world, [&] {
    if (units.empty())
      throw DataError(
          fmt::format("'{}' has no units: it was trained without a tokenizer", request.tokenizer),
          "name a run that was trained on labels, or the file of a tokenizer");
  });
  return units;
}

/// `units`: those of a run; "" for the file of a tokenizer.
void make_tokens(const TokensRequest& request, const std::string& units) {
  const OnBad on_bad = on_bad_of(request.on_bad, "--on-bad");
  const Vocabulary vocabulary = units.empty() ? Vocabulary::load(request.tokenizer)
                                              : Vocabulary::from_json(units, request.tokenizer);
  std::filesystem::path source(request.tokenizer);
  if (!source.has_filename()) source = source.parent_path();  // "runs/asr/"
  const std::string name = request.name.empty() ? source.stem().string() : request.name;
  for (const std::string& folder : request.folders)
    print_safely("{}\n", write_labels(folder, vocabulary, name, on_bad).to_string());
}

void add_prepare_tokens(CommandLine& prepare, PrepareAction& chosen) {
  const auto request = std::make_shared<TokensRequest>();
  CommandLine app = prepare.add_subcommand("tokens", "tokenise the texts of packed audio");
  app.add_option("folders", request->folders, "folders of `choir prepare audio`").required();
  app.add_option("--tokenizer", request->tokenizer,
                 "file of `choir prepare tokenizer`, a SentencePiece .model, or the run of a "
                 "recogniser, whose units are taken")
      .required();
  app.add_option("--name", request->name,
                 "name of the labels, labels.NAME.bin; default: that of the tokenizer file or run");
  app.add_option("--on-bad", request->on_bad,
                 "for texts with characters outside the vocabulary: stop, or skip at most 1 %");
  choose(app, chosen, [request] {
    return with_mpi([&](MpiSession& session) {
      const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
      choose_threads(mesh->node());
      const std::string units = units_of_run(*request, mesh->world());
      together(mesh->world(), [&] {
        if (session.rank() == 0) make_tokens(*request, units);
      });
      return 0;
    });
  });
}

}  // namespace

int prepare_command(const Invocation& call) {
  CommandLine app("Prepares data for training.", "choir prepare");
  app.require_subcommand();
  PrepareAction chosen;
  add_prepare_text(app, chosen);
  add_prepare_chat(app, chosen, call.families);
  add_prepare_audio(app, chosen);
  add_prepare_manifest(app, chosen);
  add_prepare_dialogues(app, chosen);
  add_prepare_tokenizer(app, chosen);
  add_prepare_tokens(app, chosen);
  add_prepare_codes(app, chosen, call.families);
  add_prepare_corpus(app, chosen);
  if (const auto code = parse(app, call)) return *code;
  return chosen();
}

}  // namespace choir
