// choir import DIR|FILE --out RUN ...
#include <fmt/core.h>

#include <filesystem>

#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/hints.hpp"
#include "src/core/output.hpp"
#include "src/core/text.hpp"
#include "src/models/fastconformer/foreign/nemo.hpp"
#include "src/models/gpt/foreign/conversion.hpp"
#include "src/models/gpt/foreign/logit_check.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/run/loaded_model.hpp"

namespace choir {
namespace {

struct ImportArguments {
  ImportRequest import;
  std::string check_ids, check_logits;
  double tolerance = 0;
};

void print_import(const ImportReport& report, const ImportArguments& request, int ranks) {
  print_safely("{}: {}\n", printable_name(request.import.path), printable_name(report.model));
  print_safely("parameters={} ranks={} largest_share={} bytes={}\n", report.parameters, ranks,
               report.largest_share, report.bytes);
  if (!report.missing.empty())
    print_safely(
        "initialised: {}\n{} of {} parameters have initial values instead of imported ones\n",
        printable_name(join(report.missing, ", ")), report.fresh, report.parameters);
  if (!report.unused.empty())
    print_safely("left out: {}\n", printable_name(join(report.unused, ", ")));
  if (!report.tokenizer.empty())
    print_safely("kept in {}/{}: {}\n", printable_name(request.import.out), kTokenizerFolder,
                 printable_name(join(report.tokenizer, ", ")));
  print_safely("{}\n", printable_name(report.checkpoint));
}

/// Compares one forward pass of the new run with given logits.
int compare_logits(MpiSession& session, const ImportArguments& request) {
  Workplace place;
  place.mesh = inference_mesh(session, 1);
  choose_threads(place.mesh->node());
  const LoadedModel loaded =
      load_generator(*request.import.families, request.import.out, "", place);
  LogitDifference difference;
  together(place.mesh->world(), [&] {
    const auto& config = loaded.instance->as<Gpt>().config();
    const auto ids = ids_of(read_npy(request.check_ids), config, request.check_ids);
    const Logits ours = logits_of(*loaded.instance, ids);
    difference = compare_logits(config, ours, read_npy(request.check_logits), request.tolerance,
                                request.check_logits);
    if (difference.good()) return;
    throw NumericError(fmt::format("the logits of {} differ by {:.3e} from those of '{}' (row {}, "
                                   "token {}), more than rounding explains ({:.3e})",
                                   request.import.out, difference.largest, request.check_logits,
                                   difference.row, difference.column, difference.tolerance),
                       "the imported model does not compute the same function as the model that "
                       "produced the logits");
  });
  if (session.rank() == 0)
    print_safely("check: logits agree to {:.3e} (tolerance {:.3e})\n", difference.largest,
                 difference.tolerance);
  return 0;
}

/// The path of the model: that of the only .nemo file of a folder that has no model of another
/// kind, as a download from the hub makes it, else the given one. Local.
std::string nemo_in(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored) || fs::exists(path + "/config.json", ignored)) return path;
  if (fs::exists(path + "/model_config.yaml", ignored) &&
      fs::exists(path + "/model_weights.ckpt", ignored))
    throw DataError(fmt::format("'{}' is an unpacked .nemo file", path),
                    fmt::format("pack it again: tar -cf model.nemo -C {} model_config.yaml "
                                "model_weights.ckpt and the files of its tokenizer",
                                path));
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(path, ignored))
    if (entry.path().extension() == ".nemo") found.push_back(entry.path().string());
  if (found.size() > 1)
    throw DataError(fmt::format("'{}' has {} .nemo files", path, found.size()),
                    fmt::format("name one of them, for example {}", found.front()));
  return found.empty() ? path : found.front();
}

int import(MpiSession& session, ImportArguments request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  bool nemo = false;
  together(mesh->world(), [&] {
    std::error_code ignored;
    if (const std::string& path = request.import.path; !std::filesystem::exists(path, ignored))
      throw StorageError(fmt::format("cannot open '{}': No such file or directory", path),
                         advice_on_path(path, "give the folder or the file of a model"));
    request.import.path = nemo_in(request.import.path);
    nemo = is_nemo(request.import.path);
    if (nemo && !request.check_ids.empty())
      throw DeckError("--check-ids is for language models, not for NeMo recognisers",
                      "leave it out");
  });
  const ImportReport report = (nemo ? import_nemo : import_model)(mesh->world(), request.import);
  if (session.rank() == 0) print_import(report, request, session.size());
  return request.check_ids.empty() ? 0 : compare_logits(session, request);
}

}  // namespace

int import_command(const Invocation& call) {
  CommandLine app(
      "Creates a run from a model of another program: GPT-2, Llama, Mistral and SmolLM of "
      "transformers (a folder with config.json and safetensors), GGUF of llama.cpp, ckpt.pt of "
      "nanoGPT, .bin of llm.c, and FastConformers of NeMo with a CTC head (.nemo of "
      "EncDecCTCModel, EncDecCTCModelBPE and the hybrids of transducer and CTC). Every rank reads "
      "its share.",
      "choir import");
  ImportArguments request{.import = {.families = &call.families}};
  app.add_option("path", request.import.path, "folder or file of the model").required();
  app.add_option("overrides", request.import.overrides,
                 "any number of key.path=value of the run's deck");
  app.add_option("--out", request.import.out, "run directory to create").required();
  app.add_option("--adapter", request.import.adapter,
                 "folder with a PEFT LoRA adapter for this model, which the run then trains");
  app.add_flag("--allow-missing", request.import.allow_missing,
               "initialise tensors that are not in the file as in a new model, and list them; at "
               "least one must be in the file");
  app.add_flag("--allow-unused", request.import.allow_unused,
               "ignore unknown tensors and unknown keys of the description");
  auto ids = app.add_option("--check-ids", request.check_ids,
                            "run the new model on these token ids (.npy, one dimension)");
  auto logits = app.add_option("--check-logits", request.check_logits,
                               "compare its logits with these (.npy, [ids, vocabulary])");
  ids.needs(logits);
  logits.needs(ids);
  app.add_option("--tolerance", request.tolerance,
                 "largest accepted difference; default: what rounding explains")
      .positive()
      .needs(ids);
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) { return import(session, request); });
}

}  // namespace choir
