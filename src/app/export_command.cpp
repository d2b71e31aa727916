// choir export RUN --format hf|gguf|nanogpt|llmc|peft|nemo --out PATH
#include <fmt/core.h>

#include <filesystem>

#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/hints.hpp"
#include "src/core/output.hpp"
#include "src/models/fastconformer/foreign/nemo.hpp"
#include "src/models/gpt/family.hpp"
#include "src/models/gpt/foreign/conversion.hpp"
#include "src/run/loaded_model.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

/// Refuses a model of a family that the format does not have.
void require_exportable(const LoadedModel& loaded, const std::string& format) {
  const ModelFamily& family = loaded.deck.family();
  if (format == "nemo" ? family.transcribes() : family.generates()) return;
  throw DeckError(
      fmt::format("{} has model.type = \"{}\", which cannot be exported with --format {}",
                  loaded.checkpoint.path, family.name(), format),
      family.transcribes() ? "use --format nemo, which is for recognisers"
      : family.generates()
          ? "use --format hf, gguf, nanogpt or llmc, which are for language models"
          : "only models of the types \"gpt\" and \"fastconformer\" can be exported");
}

/// Refuses the name of a file for a format that writes a folder.
void require_folder_name(const ExportRequest& request) {
  const std::string ending = fs::path(request.out).extension().string();
  const bool folder =
      request.format == "hf" || request.format == "nanogpt" || request.format == "peft";
  if (!folder || (ending != ".pt" && ending != ".pth" && ending != ".bin")) return;
  throw DeckError(fmt::format("--format {} writes a folder, and '{}' is the name of a file",
                              request.format, request.out),
                  fmt::format("name a folder: --out {}",
                              as_typed({fs::path(request.out).replace_extension().string()})));
}

/// The lines of Python with which nanoGPT loads an exported folder.
std::string nanogpt_lines(const std::string& folder) {
  return fmt::format(
      "in Python, beside nanoGPT's model.py:\n"
      "  import json; from model import GPT, GPTConfig; from safetensors.torch import load_file\n"
      "  model = GPT(GPTConfig(**json.load(open(\"{0}/model_args.json\"))))\n"
      "  model.load_state_dict(load_file(\"{0}/model.safetensors\"), strict=False)\n",
      folder);
}

int export_checkpoint(MpiSession& session, const FamilyTable& families, const std::string& path,
                      bool ema, ExportRequest request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  together(mesh->world(), [&] { require_folder_name(request); });
  const LoadedModel loaded = open_model(families, path, "", *mesh, with_ema({}, ema));
  together(mesh->world(), [&] { require_exportable(loaded, request.format); });
  const fs::path run = run_folder_of(path);
  request.tokenizer_folder = (run / kTokenizerFolder).string();
  request.vocabulary = loaded.vocabulary;
  if (request.name.empty()) request.name = run.filename().string();
  const ExportReport report =
      request.format == "nemo"
          ? export_nemo(mesh->world(), loaded.checkpoint,
                        model_of(loaded.deck).as<FastConformerConfig>(), request)
          : export_model(mesh->world(), loaded.checkpoint, gpt_of(loaded.deck), request);
  if (session.rank() != 0) return 0;
  for (const std::string& file : report.files) print_safely("{}\n", printable_name(file));
  print_safely("format={} type={} bytes={}\n", request.format, report.type, report.bytes);
  for (const std::string& note : report.notes) print_safely("{}\n", printable_name(note));
  if (report.zero_tensors > 0)
    print_safely("biases that this model lacks were written as zeros: {}\n", report.zero_tensors);
  const std::string out = as_typed({request.out});
  if (request.format == "hf")
    print_safely("in Python: transformers.AutoModelForCausalLM.from_pretrained(\"{}\")\n",
                 printable_name(request.out));
  else if (request.format == "nanogpt")
    print_safely("{}", nanogpt_lines(printable_name(request.out)));
  else if (request.format == "gguf")
    print_safely("in llama.cpp: llama-cli -m {} -p \"Once\"\n", printable_name(out));
  else if (request.format == "nemo")
    print_safely("in Python: nemo.collections.asr.models.ASRModel.restore_from(\"{}\")\n",
                 printable_name(request.out));
  return 0;
}

}  // namespace

int export_command(const Invocation& call) {
  CommandLine app(
      "Writes a checkpoint as a model of another program. CHECKPOINT is a checkpoint, or a run "
      "directory (its newest). Example: `choir export runs/quickstart --format hf --out model_hf`",
      "choir export");
  std::string path;
  bool ema = false;
  ExportRequest request;
  app.add_option("checkpoint", path, "checkpoint or run directory").required();
  app.add_option(
         "--format", request.format,
         "hf: folder for transformers; gguf: file for llama.cpp; nanogpt: folder of safetensors "
         "with nanoGPT's names; llmc: file for llm.c; peft: folder with only the adapters; nemo: "
         ".nemo file of a recogniser for NeMo")
      .required()
      .one_of({"hf", "gguf", "nanogpt", "llmc", "peft", "nemo"});
  app.add_flag("--merge", request.merge, "merge the adapters of model.lora into the weights");
  add_ema_option(app, ema);
  app.add_option("--out", request.out, "folder or file to write").required();
  app.add_option("--type", request.type,
                 "type of the weights: f32, f16, bf16, f64 (hf), q8_0 and q4_k (gguf)")
      .shows_default()
      .one_of({"f32", "f16", "bf16", "f64", "q8_0", "q4_k"});
  app.add_option("--shard-bytes", request.shard_bytes,
                 "largest size of a safetensors file in bytes")
      .within(std::int64_t{1}, std::int64_t{1} << 50);
  app.add_option("--name", request.name, "name of the model in GGUF; default: the run's name");
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) {
    return export_checkpoint(session, call.families, path, ema, request);
  });
}

}  // namespace choir
