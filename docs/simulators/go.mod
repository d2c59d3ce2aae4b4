module steptable

go 1.21
