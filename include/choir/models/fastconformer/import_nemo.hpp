#pragma once
// Import of NeMo's recognisers (.nemo) as FastConformer runs, for transcription, for training, and
// as the encoder of a SALM.
#include <string>

#include "choir/train/step/imported_run.hpp"

namespace choir {

/// Local. True if the file is a tar archive, perhaps compressed, like .nemo; false for unreadable
/// files.
bool is_nemo(const std::string& path);

/// Collective; the same report on every rank. Errors as for import_model(). Nothing in the archive
/// is executed.
ImportReport import_nemo(Communicator& world, const ImportRequest& request);

}  // namespace choir
