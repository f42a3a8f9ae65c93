// Scores of events in C++ with ONNX Runtime: one event on each line of the standard input, its numbers separated by
// blanks, in the order of the metadata entry "columns"; its score on each line of the standard output.
//
//   normae export toy-2gauss-nae --onnx -o model.onnx
//   g++ -std=c++17 score.cpp -I$ORT/include -L$ORT/lib -lonnxruntime -o score
//   echo "0.5 -1.2" | LD_LIBRARY_PATH=$ORT/lib ./score model.onnx

#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

// Number is float, or double for a run on a table.
template <typename Number>
int score(Ort::Session& session, std::vector<int64_t> shape) {
  int64_t features = 1;
  for (std::size_t axis = 1; axis < shape.size(); ++axis) features *= shape[axis];

  std::vector<Number> events;
  std::string line;
  for (int64_t row = 0; std::getline(std::cin, line); ++row) {
    std::istringstream numbers(line);
    int64_t count = 0;
    for (Number number; numbers >> number; ++count) events.push_back(number);
    if (count != features) {
      std::cerr << "line " << row + 1 << ": expected " << features << " numbers, got " << count << "\n";
      return 2;
    }
  }
  if (events.empty()) return 0;
  shape[0] = static_cast<int64_t>(events.size()) / features;  // the batch is free

  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  auto input = Ort::Value::CreateTensor<Number>(memory, events.data(), events.size(), shape.data(), shape.size());
  const char* input_names[] = {"events"};
  const char* output_names[] = {"score"};  // or "energy", "log_prob", "score_std", "score_draws"
  auto outputs = session.Run(Ort::RunOptions{nullptr}, input_names, &input, 1, output_names, 1);

  const Number* found = outputs[0].template GetTensorData<Number>();
  for (int64_t row = 0; row < shape[0]; ++row) std::cout << found[row] << "\n";
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "expected one argument, the .onnx file\n";
    return 2;
  }
  Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "normae");
  Ort::Session session(environment, argv[1], Ort::SessionOptions{});
  auto type = session.GetInputTypeInfo(0);
  auto info = type.GetTensorTypeAndShapeInfo();
  bool table = info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
  return table ? score<double>(session, info.GetShape()) : score<float>(session, info.GetShape());
}
