#pragma once
// The functions of cuDNN's C backend interface that choir uses, loaded at run time. Types and
// constants come from its headers.
#include <cudnn.h>

#include <string>

namespace choir::cudnn {

struct Api {
  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnGetErrorString) get_error_string = nullptr;
  decltype(&cudnnGetLastErrorString) get_last_error_string = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&cudnnBackendFinalize) finalize = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
};

/// Loads cuDNN on the first call; throws DeckError with absent_because() if it is missing.
const Api& api();

/// The reason why cuDNN cannot be used; empty if it is installed and new enough for the attention
/// patterns.
const std::string& absent_because();

/// "cuDNN 9.19.0 (libcudnn.so.9)"; empty if absent.
std::string version_text();

}  // namespace choir::cudnn
