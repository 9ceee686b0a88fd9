// Loads a plugin, which talks: plugged PLUGIN PORT.
package main

import (
	"fmt"
	"os"
	"plugin"
)

func main() {
	loaded, err := plugin.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	talk, err := loaded.Lookup("Talk")
	if err != nil {
		panic(err)
	}
	fmt.Println(talk.(func(string) int)(os.Args[2]))
}
