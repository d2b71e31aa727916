// choir import DIR|FILE --out RUN ...
#include <fmt/core.h>

#include "choir/comm/agreement.hpp"
#include "choir/core/printable.hpp"
#include "choir/core/text.hpp"
#include "choir/models/fastconformer/import_nemo.hpp"
#include "choir/models/gpt/foreign/import_model.hpp"
#include "choir/models/gpt/foreign/logit_check.hpp"
#include "choir/models/gpt/gpt.hpp"
#include "src/app/session.hpp"

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
        "begun anew: {}\n{} of {} parameters have their initial values, not those of a file\n",
        printable_name(join(report.missing, ", ")), report.fresh, report.parameters);
  if (!report.unused.empty())
    print_safely("left out: {}\n", printable_name(join(report.unused, ", ")));
  if (!report.tokenizer.empty())
    print_safely("kept in {}/{}: {}\n", printable_name(request.import.out), kTokenizerFolder,
                 printable_name(join(report.tokenizer, ", ")));
  print_safely("{}\n", printable_name(report.checkpoint));
}

/// One forward pass of the new run against given vectors.
int compare_logits(MpiSession& session, const ImportArguments& request) {
  Workplace place;
  place.mesh = inference_mesh(session, 1);
  choose_threads(place.mesh->node());
  const LoadedModel loaded = load_generator(request.import.out, "", place);
  LogitDifference difference;
  together(place.mesh->world(), [&] {
    const auto& config = loaded.instance->as<Gpt>().config();
    const auto ids = ids_of(read_npy(request.check_ids), config, request.check_ids);
    const Logits ours = logits_of(*loaded.instance, ids);
    difference = compare_logits(config, ours, read_npy(request.check_logits), request.tolerance,
                                request.check_logits);
    if (difference.good()) return;
    throw NumericError(
        fmt::format("the logits of {} differ by {:.3e} from those of '{}' (row {}, token {}), and "
                    "rounding explains {:.3e}",
                    request.import.out, difference.largest, request.check_logits, difference.row,
                    difference.column, difference.tolerance),
        "the model computes something else than the one that the vectors are of");
  });
  if (session.rank() == 0)
    print_safely("check: logits agree to {:.3e} (tolerance {:.3e})\n", difference.largest,
                 difference.tolerance);
  return 0;
}

int import(MpiSession& session, const ImportArguments& request) {
  const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
  bool nemo = false;
  together(mesh->world(), [&] {
    nemo = is_nemo(request.import.path);
    if (nemo && !request.check_ids.empty())
      throw DeckError("--check-ids is for language models, not for recognisers of NeMo",
                      "leave it out");
  });
  const ImportReport report = (nemo ? import_nemo : import_model)(mesh->world(), request.import);
  if (session.rank() == 0) print_import(report, request, session.size());
  return request.check_ids.empty() ? 0 : compare_logits(session, request);
}

}  // namespace

int import_command(const Arguments& arguments) {
  CommandLine app(
      "Makes a run of a model of another program: GPT-2, Llama, Mistral and SmolLM of transformers "
      "(a folder with config.json and safetensors), GGUF of llama.cpp, ckpt.pt of nanoGPT, .bin of "
      "llm.c, FastConformers of NeMo (.nemo). Every rank reads its share.",
      "choir import");
  ImportArguments request;
  app.add_option("path", request.import.path, "the folder or file").required();
  app.add_option("overrides", request.import.overrides,
                 "key.path=value of the run's deck, as many as needed");
  app.add_option("--out", request.import.out, "the run directory that is made").required();
  app.add_option("--adapter", request.import.adapter,
                 "a folder with a LoRA adapter of PEFT for this model, which the run then trains");
  app.add_flag("--allow-missing", request.import.allow_missing,
               "tensors that are not in the file begin as in a fresh model, and are listed; one at "
               "least must be there");
  app.add_flag("--allow-unused", request.import.allow_unused,
               "leave out tensors, and keys of the description, that are not known");
  auto ids = app.add_option("--check-ids", request.check_ids,
                            "afterwards run these token ids, an .npy file of one dimension");
  auto logits = app.add_option("--check-logits", request.check_logits,
                               "... and compare with these logits [ids, vocabulary], .npy");
  ids.needs(logits);
  logits.needs(ids);
  app.add_option("--tolerance", request.tolerance,
                 "largest difference that is accepted; default: what rounding explains")
      .positive()
      .needs(ids);
  if (const auto code = parse(app, arguments)) return *code;
  return with_mpi([&](MpiSession& session) { return import(session, request); });
}

}  // namespace choir
