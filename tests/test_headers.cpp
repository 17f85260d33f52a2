// Nothing: its target holds the headers that tests share (CMakeLists.txt).
